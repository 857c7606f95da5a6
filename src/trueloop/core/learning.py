"""Report whether the loss of a run fell below that of the best answer that does not depend on the input."""

from enum import StrEnum
from typing import Final, NamedTuple

from trueloop.core.formatting import format_float, format_percent

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


class LearningVerdict(StrEnum):
    """Whether a loss fell below what always giving the same answer costs."""

    LEARNING = "learning"
    SLOWLY = "slowly"
    """The loss falls, but is not clearly below that of the best constant answer."""
    NOT_AT_ALL = "not at all"
    DIVERGING = "diverging"
    UNKNOWN = "unknown"
    """The best constant answer is not defined or not known, or the run is too short."""


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

    @property
    def is_failing(self) -> bool:
        """Whether the loss did not come clearly below that of the best constant answer."""
        return self.verdict in (LearningVerdict.SLOWLY, LearningVerdict.NOT_AT_ALL, LearningVerdict.DIVERGING)

    @property
    def losses(self) -> str:
        """The losses in words: "loss 2.31 → 0.04; always answering the mean costs 2.30"."""
        text = f"loss {format_float(self.start)} → {format_float(self.end)}"
        if self.constant is None:
            return text
        text = f"{text}; always answering the {CONSTANT_ANSWERS[self.kind]} costs {format_float(self.constant)}"
        if self.only_class is None:
            return text
        return (
            f"{text}; only class {self.only_class} is predicted, which {format_percent(self.share)} of the targets have"
        )
