"""Conclude from the experiments what keeps a script from learning; pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean, pstdev
from typing import Final, NamedTuple

from trueloop.app.diagnosis.experiments import LossCurve, Trial, Trials
from trueloop.core.formatting import format_count, format_float, format_percent
from trueloop.core.learning import CONSTANT_ANSWERS, LEARNS, LearningSummary, LearningVerdict

HELPS: Final = 0.8  # of the loss without the change; less is within the scatter of short runs
HELPS_LEARNING: Final = 0.5  # the same for a run that learns: a loss that falls faster at first proves little
MIN_GAIN: Final = 0.1  # of the loss of the best constant answer
BELOW_CONSTANT: Final = 0.95  # of the loss of the best constant answer, below which a change makes a model learn
SAME: Final = 0.05  # of the loss without a change, by which losses of equal quality may differ
FITS: Final = 0.5  # of the loss of the best constant answer for one batch, below which a model can fit it
MEMORISES: Final = 0.4  # of the gain that random labels give too
NOISE: Final = 3.0  # standard errors
SAME_LOSS: Final = 0.1  # of the values of the main loss, from which another loss counts
GAME_SHARE: Final = 0.3  # of the values of the main loss, from which the loss of another line counts
WORSE: Final = 1.25  # times another loss without the change
RAISES: Final = 1.5  # times the loss without the change
AS_GOOD: Final = 0.8  # of the best gain, from which a change that is a likelier cause comes first
MAX_CHECKED: Final = 3  # changes that help, whose gain is compared with that for random labels
LAST_SHARE: Final = 1 / 3
MIN_VALUES: Final = 3


class Effect(StrEnum):
    """What a change did."""

    HELPS = "helps"
    PARTLY = "lowers the loss, but not below that of a constant answer"
    MEMORISES = "memorises: random labels are learned as well"
    NONE = "no clear effect"
    RAISES = "raises the loss"
    DIVERGES = "makes the loss diverge"


class Outcome(NamedTuple):
    """The effect of one change, as means over the seeds."""

    trial: Trial
    effect: Effect
    before: float
    """Loss of the last third of the updates without the change."""
    after: float
    """The same with the change."""


class Diagnosis(NamedTuple):
    """What the experiments say."""

    headline: str
    notes: Sequence[str]
    """Further sentences."""
    outcomes: Sequence[Outcome]
    """All changes that were tried; those that help first, by their effect."""
    constant: float | None
    """Loss of the best answer that does not depend on the input; None = not known."""
    updates: int
    """Number of updates of an experiment; fewer if the script ended earlier."""
    seeds: int
    trials: Trials

    @property
    def helping(self) -> Sequence[Outcome]:
        """The changes that help."""
        return [each for each in self.outcomes if each.effect is Effect.HELPS]


def promising(baseline: Trial, changes: Sequence[Trial], learning: LearningSummary | None) -> list[str]:
    """Return the keys of changes that seem to help, the best first."""
    learning = _progress(baseline, learning)
    outcomes = _ranked([_outcome(baseline, change, learning) for change in changes])
    return [each.trial.change.key for each in outcomes if each.effect is Effect.HELPS][:MAX_CHECKED]


def is_worse(baseline: Trial, change: Trial) -> bool:
    """Return True if a change clearly raises the loss, so that going further in its direction is no use."""
    outcome = _outcome(baseline, change, None)
    if not math.isfinite(outcome.before):  # a much lower rate may still help
        return not math.isfinite(outcome.after) and not change.change.key.startswith("rate 0")
    return not outcome.after <= outcome.before + SAME * abs(outcome.before)


def conclude(trials: Trials, learning: LearningSummary | None) -> Diagnosis:
    """Return the conclusions.

    Args:
        trials: the experiments.
        learning: how the run of the script itself went; None = not known.
    """
    baseline = trials.baseline
    if baseline is None:
        reason = trials.failed or f"{trials.stopped} before the script itself had run again"
        return Diagnosis(f"No change was tried: {reason}.", (), (), None, 0, 0, trials)
    learning, says_nothing = _progress(baseline, learning), _says_nothing(baseline, trials)
    outcomes = _ranked([_without_memorising(each, trials) for each in _outcomes(baseline, trials, learning)])
    if says_nothing:
        outcomes = [each._replace(effect=Effect.NONE) for each in outcomes]
    main = main_curve(baseline.curves[0])
    updates = main.updates[-1] + 1 if main else 0
    constants = [c.constant for curves in baseline.curves if (c := main_curve(curves)) and c.constant is not None]
    found = Diagnosis("", (), outcomes, fmean(constants) if constants else None, updates, len(baseline.curves), trials)
    headline, notes = (says_nothing, []) if says_nothing else _words(found, learning)
    return found._replace(headline=headline, notes=[*notes, *_limits(found)])


def _progress(baseline: Trial, learning: LearningSummary | None) -> LearningSummary | None:
    """Return how the run went; if it was too short to tell, how the unchanged program went in the experiments."""
    mains = [main for curves in baseline.curves if (main := main_curve(curves)) is not None]
    is_known = learning is not None and learning.verdict is not LearningVerdict.UNKNOWN
    if is_known or not mains or not all(m.constant and _last(m) <= LEARNS * m.constant for m in mains):
        return learning
    main = mains[0]
    return LearningSummary(
        LearningVerdict.LEARNING, main.kind, main.values[0], _last(main), main.constant, main.updates[-1] + 1
    )


def _says_nothing(baseline: Trial, trials: Trials) -> str:
    """Return why a lower loss does not mean that more is learned; "" = it does."""
    mains = [(main, curves) for curves in baseline.curves if (main := main_curve(curves)) is not None]
    has_several = any(
        main.kind == ""
        or len({each.location for each in curves if len(each.values) >= GAME_SHARE * len(main.values)}) > 1
        for main, curves in mains
    )
    if trials.optimizers > 1 and has_several:
        return GAME
    return UNBOUNDED if _is_signed((baseline, *trials.changes)) else ""


def _is_signed(trials: Sequence[Trial]) -> bool:
    """Return True for a loss of the program's own that falls below 0, as that of a policy or a critic does."""
    mains = [main for trial in trials for curves in trial.curves if (main := main_curve(curves)) is not None]
    return any(main.kind == "" and min(main.values) < 0 for main in mains)


def _outcomes(baseline: Trial, trials: Trials, learning: LearningSummary | None) -> list[Outcome]:
    return [_outcome(baseline, change, learning) for change in trials.changes]


def _outcome(baseline: Trial, change: Trial, learning: LearningSummary | None) -> Outcome:
    mains = [main_curve(curves) for curves in baseline.curves]
    pairs = [(main, _same(main, curves)) for main, curves in zip(mains, change.curves, strict=True) if main is not None]
    before = [_last(main) for main, _ in pairs]
    after = [math.inf if same is None else _last(same) for _, same in pairs]
    if not pairs:
        return Outcome(change, Effect.NONE, math.nan, math.nan)
    effect = _harm(before, after)
    if _is_lower(pairs, before, after, learning) and not _is_other_worse(baseline, change):
        constants = [main.constant for main, _ in pairs if main.constant is not None]
        fits = not constants or max(after) < BELOW_CONSTANT * min(constants)
        effect = Effect.HELPS if fits else Effect.PARTLY
    return Outcome(change, effect, fmean(before), fmean(after))


def _harm(before: Sequence[float], after: Sequence[float]) -> Effect:
    """Return the harm that a change does under every seed."""
    most = max(before) if all(map(math.isfinite, before)) else math.inf
    if math.isfinite(most) and not any(map(math.isfinite, after)):
        return Effect.DIVERGES
    return Effect.RAISES if all(0 < RAISES * most < value for value in after) else Effect.NONE


def _is_lower(
    pairs: Sequence[tuple[LossCurve, LossCurve | None]],
    before: Sequence[float],
    after: Sequence[float],
    learning: LearningSummary | None,
) -> bool:
    """Return True if the loss is clearly lower under every seed, also than at the end of the script's own run."""
    least, most = min(before), max(after)
    is_learning = learning is not None and learning.is_learning
    if learning is not None and learning.kind == pairs[0][0].kind and math.isfinite(learning.end):
        least = min(least, learning.end)
    if not math.isfinite(most):
        return False
    if not math.isfinite(least):
        return True
    spread = max(before) - min(before) if math.isfinite(max(before)) else 0.0
    gap = least - most
    constants = [curve.constant for curve, _ in pairs if curve.constant is not None]
    is_small = bool(constants) and gap < MIN_GAIN * min(constants)
    if is_small or any(_is_within_noise(curve, other) for curve, other in pairs if other is not None):
        return False
    share = HELPS_LEARNING if is_learning else HELPS
    if least <= 0 or most <= 0:  # a loss that may be negative has no ratio
        return gap > (1 - share) * max(abs(least), abs(most)) and gap > spread
    return most <= share * least and (gap > spread / 2 or most <= HELPS_LEARNING * least)


def _is_other_worse(baseline: Trial, change: Trial) -> bool:
    """Return True if another loss rises, as those of two networks that play against each other do."""
    for before, after in zip(baseline.curves, change.curves, strict=True):
        main = main_curve(before)
        for other in before:
            if main is None or other is main or len(other.values) < SAME_LOSS * len(main.values):
                continue
            same = _same(other, after)
            if same is None or not _last(same) <= WORSE * abs(_last(other)):
                return True
    return False


def _without_memorising(outcome: Outcome, trials: Trials) -> Outcome:
    """Demote a change with which random labels are learned as well, if the model could fit one batch without it."""
    control = trials.random_labels.get(outcome.trial.change.key)
    if control is None or outcome.effect is not Effect.HELPS or not all(map(_fits, trials.one_batch[:1])):
        return outcome
    mains = [main_curve(curves) for curves in control.curves]
    values = [_last(main) for main in mains if main is not None]
    gain = outcome.before - outcome.after if math.isfinite(outcome.before) else math.inf
    constants = [main.constant for main in mains if main is not None and main.constant is not None]
    if math.isfinite(gain) and constants and outcome.before > fmean(constants):
        gain = fmean(constants) - outcome.after
    if not values or not constants or not math.isfinite(gain) or gain <= 0:
        return outcome
    is_memorised = fmean(constants) - fmean(values) > MEMORISES * gain
    return outcome._replace(effect=Effect.MEMORISES) if is_memorised else outcome


def _ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Sort by effect, then by loss; those that gain nearly as much as the best remain in the order of likely causes.

    The learning rates count as one cause, of which the best comes first.
    """
    order = list(Effect)
    causes = [each.trial.change.key.partition(" ")[0] for each in outcomes]
    best = min((each.after for each in outcomes if each.effect is Effect.HELPS), default=math.nan)

    def key(outcome: Outcome) -> tuple[int, int, float]:
        after = outcome.after
        gain = (outcome.before - after) / (outcome.before - best) if outcome.before > best else 0.0
        is_as_good = outcome.effect is Effect.HELPS and gain >= AS_GOOD
        cause = causes.index(outcome.trial.change.key.partition(" ")[0]) if is_as_good else len(causes)
        level = math.floor(2 * math.log2(after)) if after > 0 and math.isfinite(after) else after
        return order.index(outcome.effect), cause, level if math.isfinite(level) else math.inf

    return sorted(outcomes, key=key)


GAME: Final = (
    "Two optimizers follow losses of their own, as in a GAN: a lower loss of one says nothing about the other, so the "
    "experiments say nothing. Compare samples or a metric."
)
UNBOUNDED: Final = (
    "The loss falls below 0, as that of a policy or a critic does: a lower one does not mean that more is learned, so "
    "the experiments say nothing. Compare returns or samples."
)
CANNOT_FIT: Final = (
    "The model cannot fit even one batch, also not at 10 times and a tenth of the rate: look for a graph that is cut, "
    "frozen parameters, an optimizer with other parameters, or a wrong loss."
)
SMALL_OR_NOISY: Final = (
    "Nothing that was tried helps. The run learns slowly, and the model cannot fit even one batch: it is small, or the "
    "targets contain noise that no model can predict."
)
ONE_CLASS: Final = (
    "Only class {} is predicted, which {} of the targets have: give the rare classes more weight (pos_weight of "
    "BCEWithLogitsLoss, weight of CrossEntropyLoss, or a WeightedRandomSampler), and judge by recall, not by accuracy."
)
PROGRESS: Final = {
    LearningVerdict.LEARNING: "The run learns",
    LearningVerdict.OVERFITTING: "The run overfits",
    LearningVerdict.MEMORISED: "The run memorises its samples",
}
TRAINING_ONLY: Final = (
    "The experiments compare the training loss only. For held-out samples, try more data, augmentation, weight decay, "
    "dropout, a smaller model, or an earlier end; and check that both are prepared in the same way."
)
NO_RELATION: Final = (
    "Nothing that was tried helps. The model can fit one batch, but not what the batches have in common: the labels "
    "may not follow from the inputs, or the task needs another model or many more updates."
)


def _words(found: Diagnosis, learning: LearningSummary | None) -> tuple[str, list[str]]:
    """Return the headline and further sentences."""
    if learning is not None and learning.only_class is not None:
        headline, notes = _words(found, learning._replace(only_class=None))
        return headline, [ONE_CLASS.format(learning.only_class, format_percent(learning.share)), *notes]
    if learning is not None and learning.is_learning:
        change = "This change helps clearly more" if found.helping else "Nothing that was tried helps clearly more"
        notes = [] if learning.held_out is None else [TRAINING_ONLY]
        return f"{PROGRESS[learning.verdict]}: {learning.losses}. {change}.", notes
    if found.helping:
        return f"It can learn: {found.helping[0].trial.change.title}.", []
    memorising = [each.trial.change.title for each in found.outcomes if each.effect is Effect.MEMORISES]
    notes: list[str] = []
    if memorising:
        titles = ", ".join(memorising)
        notes.append(f"With a change ({titles}) the model memorises its samples: it learns random labels as well.")
    partly = [each for each in found.outcomes if each.effect is Effect.PARTLY]
    notes += [f"{_change(each)}, which is still not below that of a constant answer." for each in partly[:2]]
    fits = [_fits(trial) for trial in found.trials.one_batch]
    if fits and not any(fits):
        is_slow = learning is not None and learning.verdict is LearningVerdict.SLOWLY
        return SMALL_OR_NOISY if is_slow else CANNOT_FIT, notes
    return NO_RELATION if any(fits) or memorising else "Nothing that was tried helps.", notes


def _change(outcome: Outcome) -> str:
    return f"{outcome.trial.change.title}: {format_float(outcome.after)} instead of {format_float(outcome.before)}"


def _limits(found: Diagnosis) -> list[str]:
    trials = found.trials
    notes: list[str] = []
    if trials.stopped:
        tried = f"{len(trials.changes)} of {format_count(trials.possible, 'change')}"
        advice = "; trueloop diagnose --budget 5m allows more" if "budget" in trials.stopped else ""
        notes.append(f"Not everything was tried, {trials.stopped}: {tried}{advice}.")
    if trials.baseline is not None and (early := [each for each in trials.baseline.ended if each]):
        notes.append(f"Each experiment ended after {format_count(found.updates, 'update')}: {early[0]}.")
    return notes


def _fits(trial: Trial) -> bool:
    """Return True if the loss of one batch came clearly below that of the best constant answer under some seed."""
    mains = [main for curves in trial.curves if (main := main_curve(curves)) is not None]
    return any(
        _lowest(main) <= FITS * (main.constant if main.constant is not None else main.values[0]) for main in mains
    )


def _lowest(curve: LossCurve) -> float:
    return min((value for value in curve.values if math.isfinite(value)), default=math.inf)


def constant_words(kind: str) -> str:
    """Return the best constant answer in words: "class shares"."""
    return CONSTANT_ANSWERS.get(kind, "")


def main_curve(curves: Sequence[LossCurve]) -> LossCurve | None:
    """Return the loss with the most values; None if there are too few."""
    return max(
        (each for each in curves if len(each.values) >= MIN_VALUES), key=lambda each: len(each.values), default=None
    )


def _same(curve: LossCurve, others: Sequence[LossCurve]) -> LossCurve | None:
    """Return the curve of the same loss in another experiment."""
    return next((each for each in others if (each.kind, each.location) == (curve.kind, curve.location)), None)


def _last_values(curve: LossCurve) -> Sequence[float]:
    start = curve.updates[-1] - LAST_SHARE * (curve.updates[-1] - curve.updates[0])
    return [value for update, value in zip(curve.updates, curve.values, strict=True) if update >= start]


def _last(curve: LossCurve) -> float:
    """Return the mean loss of the last third of the updates; infinite if one is not finite."""
    mean = fmean(_last_values(curve)) if curve.values else math.inf
    return mean if math.isfinite(mean) else math.inf


def _is_within_noise(curve: LossCurve, other: LossCurve) -> bool:
    """Return True if two losses differ by less than a few standard errors of their last thirds.

    Positive losses are compared by their logarithms: the values of a loss that falls by orders of magnitude scatter as
    widely as they fall.
    """
    several = [[value for value in _last_values(each) if math.isfinite(value)] for each in (curve, other)]
    if not all(several):
        return False
    if all(value > 0 for values in several for value in values):
        several = [[math.log(value) for value in values] for values in several]
    error = math.hypot(*(pstdev(values) / math.sqrt(len(values)) for values in several))
    return fmean(several[0]) - fmean(several[1]) <= NOISE * error
