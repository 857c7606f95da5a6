"""What is concluded from curves that are given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from trueloop.app.diagnosis.conclusions import (
    CANNOT_FIT,
    GAME,
    NO_RELATION,
    SMALL_OR_NOISY,
    UNBOUNDED,
    Diagnosis,
    Effect,
    conclude,
    is_worse,
    promising,
)
from trueloop.app.diagnosis.experiments import ChangeFacts, LossCurve, Trial, Trials
from trueloop.core.learning import HeldOutLoss, LearningSummary, LearningVerdict

LENGTH = 30


def trial(key: str, *ends: float, constant: float | None = 1.0, other: float | None = None) -> Trial:
    """A change whose loss falls to one of the ends under each seed; `other` is the end of a second loss."""
    curves = [[curve(end, "train.py:3", constant)] for end in ends]
    if other is not None:
        curves = [[*several, curve(other, "train.py:9", constant)] for several in curves]
    return Trial(ChangeFacts(key, key), curves, [""] * len(ends))


def curve(end: float, location: str, constant: float | None) -> LossCurve:
    values = [1.0] * 10 + [end * (1 + 0.01 * (-1) ** index) for index in range(20)]
    return LossCurve("mse", location, range(LENGTH), values, constant)


def concluded(
    baseline: Trial | None,
    *changes: Trial,
    one_batch: Sequence[Trial] = (),
    random_labels: dict[str, Trial] | None = None,
    learning: LearningSummary | None = None,
    stopped: str = "",
) -> Diagnosis:
    return conclude(Trials(baseline, changes, one_batch, random_labels or {}, len(changes), stopped, ""), learning)


def effects(found: Diagnosis) -> dict[str, Effect]:
    return {each.trial.change.key: each.effect for each in found.outcomes}


def test_a_change_that_raises_the_loss_or_makes_it_diverge_comes_last():
    found = concluded(trial("", 1.0), trial("a", math.nan), trial("b", 2.0), trial("c", 1.2), trial("d", 0.1))
    assert list(effects(found).items()) == [
        ("d", Effect.HELPS),
        ("c", Effect.NONE),
        ("b", Effect.RAISES),
        ("a", Effect.DIVERGES),
    ]


def test_a_change_helps_only_under_both_seeds():
    found = concluded(trial("", 1.0, 1.0), trial("a", 0.1, 0.1), trial("b", 0.1, 1.0))
    assert effects(found) == {"a": Effect.HELPS, "b": Effect.NONE}
    assert found.headline == "It can learn: a."


def test_a_gain_within_the_spread_of_the_baselines_is_none():
    found = concluded(trial("", 1.0, 0.6), trial("a", 0.45, 0.45))
    assert effects(found) == {"a": Effect.NONE}


def test_the_largest_effect_is_first_and_likely_causes_before_equal_ones():
    changes = trial("a", 0.3, 0.3), trial("b", 0.011, 0.011), trial("c", 0.01, 0.01)
    assert [each.trial.change.key for each in concluded(trial("", 1.0, 1.0), *changes).helping] == ["b", "c", "a"]


def test_a_likelier_cause_is_first_if_it_gains_nearly_as_much_as_the_best():
    changes = trial("likely", 0.18, 0.18), trial("best", 0.01, 0.01), trial("less", 0.3, 0.3)
    order = [each.trial.change.key for each in concluded(trial("", 1.0, 1.0), *changes).helping]
    assert order == ["likely", "best", "less"]


@pytest.mark.parametrize(("kind", "helps"), [("", False), ("nll", True)])
def test_nothing_is_concluded_from_a_loss_of_the_program_that_falls_below_zero(kind: str, helps: bool):
    values = [[0.4] * LENGTH, [0.4] * 10 + [-0.2] * 20]
    trials = [
        Trial(ChangeFacts(key, key), [[LossCurve(kind, "train.py:3", range(LENGTH), each, None)]] * 2, [""] * 2)
        for key, each in zip(("", "a"), values, strict=True)
    ]
    found = concluded(*trials)
    assert (found.headline == UNBOUNDED) is not helps
    assert [each.trial.change.key for each in found.helping] == ["a"] * helps


@pytest.mark.parametrize(("optimizers", "helps"), [(1, True), (2, False)])
def test_nothing_is_concluded_from_losses_of_two_optimizers(optimizers: int, helps: bool):
    trials = trial("", 1.0, 1.0, other=1.0), trial("a", 0.1, 0.1, other=1.0)
    found = conclude(Trials(trials[0], trials[1:], [], {}, 1, "", "", optimizers), None)
    assert (found.headline == GAME) is not helps
    assert bool(found.helping) is helps


@pytest.mark.parametrize("before", [math.nan, math.inf, 1e9])
def test_any_loss_below_the_constant_answer_helps_a_run_that_diverges(before: float):
    found = concluded(trial("", before, before), trial("a", 0.5, 0.5), trial("b", 5.0, 5.0), trial("c", math.nan, 0.5))
    assert effects(found) == {"a": Effect.HELPS, "b": Effect.PARTLY, "c": Effect.NONE}


def test_a_run_that_learns_needs_more_than_a_faster_start():
    learning = LearningSummary(LearningVerdict.LEARNING, "mse", 1.0, 0.4, 1.0, 500)
    found = concluded(trial("", 0.5, 0.5), trial("a", 0.3, 0.3), trial("b", 0.1, 0.1), learning=learning)
    assert effects(found) == {"a": Effect.NONE, "b": Effect.HELPS}
    assert found.headline.startswith("The run learns: loss 1.00 → 0.400")


def test_a_run_that_was_too_short_is_judged_by_the_unchanged_script():
    learning = LearningSummary(LearningVerdict.UNKNOWN, "mse", 1.0, 0.9, 1.0, 10)
    found = concluded(trial("", 0.5, 0.5), trial("a", 0.3, 0.3), learning=learning)
    assert effects(found) == {"a": Effect.NONE}
    assert found.headline.startswith("The run learns: loss ")
    found = concluded(trial("", 0.95, 0.95), trial("a", 0.3, 0.3), learning=learning)
    assert effects(found) == {"a": Effect.HELPS}


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (LearningVerdict.OVERFITTING, "The run overfits: loss 1.00 → 0.0500, held-out loss 0.500 at update 40 → 0.900"),
        (LearningVerdict.MEMORISED, "The run memorises its samples: loss 1.00 → 0.0500, held-out loss 0.900"),
    ],
)
def test_a_run_that_overfits_is_told_what_the_experiments_compare(verdict: LearningVerdict, words: str):
    learning = LearningSummary(verdict, "mse", 1.0, 0.05, 1.0, 500, held_out=HeldOutLoss(0.5, 40, 0.9))
    found = concluded(trial("", 0.5, 0.5), trial("a", 0.01, 0.01), learning=learning)
    assert found.headline.startswith(words)
    assert "training loss only" in found.notes[0]
    assert effects(found) == {"a": Effect.NONE}


def test_a_run_that_has_learned_nearly_everything_gains_nothing():
    learning = LearningSummary(LearningVerdict.LEARNING, "mse", 1.0, 0.05, 1.0, 500)
    assert effects(concluded(trial("", 0.5, 0.5), trial("a", 0.01, 0.01), learning=learning)) == {"a": Effect.NONE}


def test_the_gain_of_one_network_at_the_cost_of_the_other_is_none():
    found = concluded(trial("", 1.0, 1.0, other=1.0), trial("a", 0.1, 0.1, other=5.0), trial("b", 0.1, 0.1, other=1.0))
    assert effects(found) == {"a": Effect.NONE, "b": Effect.HELPS}


def test_what_random_labels_gain_too_is_memorised():
    controls = {"a": trial("a", 0.2, 0.2), "b": trial("b", 1.0, 1.0)}
    found = concluded(trial("", 1.0, 1.0), trial("a", 0.1, 0.1), trial("b", 0.1, 0.1), random_labels=controls)
    assert effects(found) == {"a": Effect.MEMORISES, "b": Effect.HELPS}


def test_a_change_without_which_not_even_one_batch_is_fitted_helps():
    controls = {"a": trial("a", 0.1, 0.1)}
    one_batch = [trial("one batch", 1.0, 1.0)]
    found = concluded(trial("", 1.0, 1.0), trial("a", 0.1, 0.1), one_batch=one_batch, random_labels=controls)
    assert effects(found) == {"a": Effect.HELPS}


@pytest.mark.parametrize(
    ("ends", "headline"), [((1.0, 1.0), CANNOT_FIT), ((0.1, 1.0), NO_RELATION), ((), "Nothing that was tried helps.")]
)
def test_one_batch_tells_causes_apart(ends: Sequence[float], headline: str):
    one_batch = [trial("one batch", *ends)] if ends else []
    assert concluded(trial("", 1.0, 1.0), trial("a", 1.0, 1.0), one_batch=one_batch).headline == headline


def test_a_run_that_learns_slowly_but_fits_no_batch_is_not_suspected():
    learning = LearningSummary(LearningVerdict.SLOWLY, "mse", 1.1, 0.96, 1.0, 300)
    one_batch = [trial("one batch", 1.0, 1.0)]
    found = concluded(trial("", 0.97, 0.97), trial("a", 1.0, 1.0), one_batch=one_batch, learning=learning)
    assert found.headline == SMALL_OR_NOISY


def test_losses_without_a_constant_answer_are_compared_with_the_baseline():
    found = concluded(trial("", -1.0, -1.0, constant=None), trial("a", -2.0, -2.0, constant=None))
    assert effects(found) == {"a": Effect.HELPS}


def test_what_was_not_tried_is_said():
    found = concluded(trial("", 1.0, 1.0), trial("a", 1.0, 1.0), stopped="interrupted")
    assert "Not everything was tried, interrupted: 1 of 1 change." in found.notes
    assert concluded(None, stopped="interrupted").headline.startswith("No change was tried: interrupted")


def test_a_rate_is_not_raised_further_if_it_raises_the_loss():
    assert is_worse(trial("", 1.0, 1.0), trial("rate 10", 1.2, 1.2))
    assert not is_worse(trial("", 1.0, 1.0), trial("rate 10", 1.0, 1.0))
    assert is_worse(trial("", math.nan, math.nan), trial("rate 10", math.nan, math.nan))
    assert not is_worse(trial("", math.nan, math.nan), trial("rate 0.1", math.nan, math.nan))


def test_at_most_three_changes_are_checked_for_memorising():
    changes = [trial(str(index), 0.1, 0.1) for index in range(5)]
    assert promising(trial("", 1.0, 1.0), changes, None) == ["0", "1", "2"]
