"""Report whether the loss of a run fell below that of the best answer that does not depend on the input."""

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean, median, pstdev
from typing import Final, NamedTuple

from trueloop.core.formatting import format_float, format_number, format_percent

CONSTANT_ANSWERS: Final = {
    "nll": "class shares",
    "bce": "share of ones",
    "bce_with_logits": "share of ones",
    "mse": "mean",
    "l1": "median",
    "smooth_l1": "mean",
    "huber": "mean",
}
"""Loss -> the best constant answer, in words."""


LEARNS: Final = 0.9  # of the loss of the best constant answer, below which a model clearly learns
MIN_UPDATES: Final = 30  # from the first to the last loss; fewer say nothing about a model that learns slowly
MIN_LOSSES: Final = 16
SLOWLY: Final = 0.98
DIVERGED: Final = 1.5  # times the loss at the start, and times that of the best constant answer
MIN_PASSES: Final = 5  # evaluations, before a rise of their loss is named
RISES: Final = 1.2  # times the lowest held-out loss; less is common for a model that only grows more certain
MIN_RISE: Final = 0.05  # of the loss of the best constant answer
RISE_NOISE: Final = 3.0  # standard errors of the mean of the latest evaluations
SECOND_DIFFERENCE: Final = 0.83  # median absolute second difference of noise, in its standard deviations
FALLS: Final = 0.95  # of the training loss at the lowest held-out loss
MEMORISED_TRAINING: Final = 0.5  # of the loss of the best constant answer
MEMORISED_HELD_OUT: Final = 0.95  # the same for held-out samples
MEMORISED_RIGHT: Final = 0.1  # of the samples outside of the most frequent class that may be right by chance


class LearningVerdict(StrEnum):
    """Whether a loss fell below what always giving the same answer costs."""

    LEARNING = "learning"
    OVERFITTING = "overfitting"
    """The loss falls further, but that of held-out samples rises."""
    MEMORISED = "memorised"
    """The loss fell, but that of held-out samples is not below that of the best constant answer."""
    SLOWLY = "slowly"
    """The loss falls, but is not clearly below that of the best constant answer."""
    NOT_AT_ALL = "not at all"
    DIVERGING = "diverging"
    UNKNOWN = "unknown"
    """The best constant answer is not defined or not known, or the run is too short."""


def last_values(values: Sequence[float]) -> Sequence[float]:
    """Return the latest losses, which are the end of a run."""
    return values[-max(8, len(values) // 5) :]


class HeldOutLoss(NamedTuple):
    """The loss of held-out samples, as the program computes it without a graph."""

    best: float
    best_update: int
    """Number of updates before the evaluation with the lowest loss."""
    end: float
    """Mean over the latest evaluations."""


class HeldOutCourse(NamedTuple):
    """The evaluations of one model on the same held-out samples, as mean losses of a target."""

    updates: Sequence[int]
    """Number of updates before each evaluation."""
    values: Sequence[float]
    right: float | None
    """Share of the samples for which the latest evaluation predicts the right class; None for a loss of numbers."""
    majority: float
    """Share of the most frequent class."""
    constant: float | None
    """Loss of the best answer that does not depend on the input; None = not defined."""

    def rise(self, updates: Sequence[int], losses: Sequence[float]) -> HeldOutLoss | None:
        """Return the losses if they rise clearly while the training loss falls; otherwise None.

        Args:
            updates: the updates at which the training loss was read.
            losses: the training loss at each of them.
        """
        values, width = self.values, max(2, len(self.values) // 5)
        if len(values) < MIN_PASSES:
            return None
        means = [fmean(values[at : at + width]) for at in range(len(values) - width + 1)]
        lowest = means.index(min(means))
        best = min(range(lowest, lowest + width), key=values.__getitem__)
        rise = means[-1] - means[lowest]
        bends = [abs(b - (a + c) / 2) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
        noise = median(bends) / SECOND_DIFFERENCE * (2 / width) ** 0.5
        if rise < max((RISES - 1) * abs(means[lowest]), MIN_RISE * (self.constant or 0), RISE_NOISE * noise):
            return None
        nearest = sorted(range(len(losses)), key=lambda at: abs(updates[at] - self.updates[best]))
        before = fmean(losses[at] for at in nearest[: max(8, len(losses) // 10)])
        is_falling = fmean(last_values(losses)) < FALLS * before
        return HeldOutLoss(values[best], self.updates[best], means[-1]) if is_falling else None

    def memorised(self, end: float, constant: float | None) -> HeldOutLoss | None:
        """Return the losses if they were never below that of a constant answer, far above the training loss.

        Args:
            end: the training loss at the end of the run.
            constant: that of the best constant answer for the training samples.
        """
        best, width = min(self.values), max(1, len(self.values) // 5)
        if constant is None or self.constant is None or end > MEMORISED_TRAINING * constant:
            return None
        if self.right is not None and self.right > self.majority + MEMORISED_RIGHT * (1 - self.majority):
            return None
        if best < MEMORISED_HELD_OUT * self.constant:
            return None
        at = self.values.index(best)
        return HeldOutLoss(best, self.updates[at], fmean(self.values[-width:]))


class LearningSummary(NamedTuple):
    """The loss of a run at its start and its end, next to the loss of the best constant answer."""

    verdict: LearningVerdict
    kind: str
    """The loss: "cross_entropy", "mse"."""
    start: float
    end: float
    constant: float | None
    """Loss of the best answer that does not depend on the input; None = not defined."""
    updates: int
    """Number of updates from the first to the last loss that was read."""
    only_class: int | None = None
    """The frequent class that alone was predicted in the latest batches; None = there were others."""
    share: float = 0.0
    """Its share of the targets."""
    held_out: HeldOutLoss | None = None
    """The loss of held-out samples, if the verdict is about them."""

    @property
    def is_learning(self) -> bool:
        """Whether the loss fell clearly below that of the best constant answer, whatever held-out samples say."""
        return self.verdict in (LearningVerdict.LEARNING, LearningVerdict.OVERFITTING, LearningVerdict.MEMORISED)

    @property
    def is_failing(self) -> bool:
        """Whether the loss did not come clearly below that of the best constant answer."""
        return self.verdict in (LearningVerdict.SLOWLY, LearningVerdict.NOT_AT_ALL, LearningVerdict.DIVERGING)

    @property
    def losses(self) -> str:
        """The losses in words: "loss 2.31 → 0.04; always answering the mean costs 2.30"."""
        text = f"loss {format_float(self.start)} → {format_float(self.end)}"
        if self.held_out is not None:
            held_out = self.held_out
            rise = f"{format_float(held_out.best)} at update {format_number(held_out.best_update)} → "
            is_rising = self.verdict is LearningVerdict.OVERFITTING
            text = f"{text}, held-out loss {rise if is_rising else ''}{format_float(held_out.end)}"
        if self.constant is None:
            return text
        text = f"{text}; always answering the {CONSTANT_ANSWERS[self.kind]} costs {format_float(self.constant)}"
        if self.only_class is None:
            return text
        return (
            f"{text}; only class {self.only_class} is predicted, which {format_percent(self.share)} of the targets have"
        )


def summarise(kind: str, updates: Sequence[int], values: Sequence[float], constant: float | None) -> LearningSummary:
    """Compare the losses of a run with that of the best constant answer.

    Args:
        kind: the loss: "nll", "mse".
        updates: the updates at which the loss was read.
        values: the mean loss of a target at each of them.
        constant: that of the best answer that does not depend on the input; None = not defined.
    """
    start, last = values[0], last_values(values)
    end = fmean(last)
    error = pstdev(last) / math.sqrt(len(last)) if math.isfinite(end) else math.inf
    length = updates[-1] - updates[0] + 1
    is_short = length < MIN_UPDATES or len(values) < MIN_LOSSES
    verdict = LearningVerdict.UNKNOWN if is_short or constant is None else _verdict(start, end, error, constant)
    return LearningSummary(verdict, kind, start, end, constant, length)


def _verdict(start: float, end: float, error: float, constant: float) -> LearningVerdict:
    if not math.isfinite(end) or end > DIVERGED * max(start, constant):
        return LearningVerdict.DIVERGING
    if end <= LEARNS * constant:
        return LearningVerdict.LEARNING
    if end < min(SLOWLY * constant, constant - 2 * error) or (start > constant and end < start / 2):
        return LearningVerdict.SLOWLY
    return LearningVerdict.NOT_AT_ALL
