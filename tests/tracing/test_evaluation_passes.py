"""Which passes over a loader are sweeps, told by events alone."""

from dataclasses import fields

import pytest

from trueloop.tracing.evaluation_passes import MAX_CALLS, EvaluationPassTracker, HeldOutTracker
from trueloop.tracing.events import (
    BackwardEnded,
    BackwardStarted,
    LoaderExhausted,
    LoaderStarted,
    ModelCalled,
    Ref,
    StepTaken,
    TracingGap,
    WatchEnded,
)

TRAIN, HELD_OUT, OTHER = (Ref("DataLoader", name) for name in ("train", "held out", "other"))
MODEL, TEACHER = Ref("Net", "model"), Ref("Net", "teacher")
WEIGHTS = {MODEL: frozenset({Ref("Parameter", "w")}), TEACHER: frozenset({Ref("Parameter", "v")})}


def event(kind, **known):
    """An event with something in every field."""
    return kind(
        **{field.name: None for field in fields(kind)} | {"update": 0, "backward_count": 0, "time_s": 0.0} | known
    )


def call(model=MODEL, loader=HELD_OUT, **known):
    return event(ModelCalled, model=model, loader=loader, parameters=WEIGHTS[model], recomputed=False, **known)


def update(model=MODEL, loader=TRAIN):
    return [event(BackwardStarted, loader=loader), event(StepTaken, parameters=WEIGHTS[model])]


def sweep(loader=HELD_OUT, batches=2, model=MODEL, within=(), backwards=0):
    drawn = [each for _ in range(batches) for each in (call(model, loader), *within)]
    end = event(LoaderExhausted, loader=loader, batches=batches, backwards=backwards)
    return [event(LoaderStarted, loader=loader), *drawn, end]


END = [event(WatchEnded, update=9)]


def told(*parts):
    sweeps = EvaluationPassTracker()
    return [ended for part in parts for one in part if (ended := sweeps.observe(one)) is not None]


def ended(*parts):
    return [each for one in told(*parts) for each in one.passes]


def test_evaluation_passes_between_updates_and_at_the_end():
    found = ended(update(), sweep(), update(), sweep(batches=3), END)
    assert [(one.loader, one.batches, len(one.calls)) for one in found] == [(HELD_OUT, 2, 2), (HELD_OUT, 3, 3)]
    assert found[0].models == [MODEL]
    assert not any(one.repeated for one in found)


def test_nothing_is_returned_before_what_follows_is_known():
    assert ended(update(), sweep()) == []


@pytest.mark.parametrize(
    "parts",
    [
        (sweep(), END),
        (update(), sweep(model=TEACHER), END),
        (update(), sweep(within=update(loader=HELD_OUT)), END),
        (update(), sweep(backwards=1), END),
        (update(), sweep(TRAIN), END),
        (update(), sweep(OTHER), update(loader=OTHER)),
        (update(), sweep()[:-1], END),
        (update(), sweep(), [event(TracingGap, updates=3)], END),
        (update(), [event(LoaderStarted, loader=HELD_OUT)], sweep()[-1:], END),
    ],
    ids=[
        "before training", "a teacher", "trained within", "trained while unseen", "the training loader",
        "a sum over an epoch", "left by break", "not watched after it", "no model",
    ],
)  # fmt: skip
def test_no_evaluation_pass(parts):
    assert ended(*parts) == []


def test_the_same_loader_again():
    found = ended(update(), sweep(), sweep(OTHER), sweep(), update())
    assert [(one.loader, one.repeated) for one in found] == [(HELD_OUT, True), (OTHER, False), (HELD_OUT, True)]


def test_the_same_loader_again_by_another_model():
    found = ended(update(), update(TEACHER), sweep(), sweep(model=TEACHER), update())
    assert [(one.models, one.repeated) for one in found] == [([each], False) for each in (MODEL, TEACHER)]


def test_the_same_batch_again():
    assert [one.repeated for one in ended(update(), sweep(within=[call(loader=None)]), END)] == [True]
    assert [one.repeated for one in ended(update(), sweep(within=[call(TEACHER, None)]), END)] == [False]


def test_no_object_of_the_program_is_kept():
    sweeps = EvaluationPassTracker()
    for one in [*update(), *sweep(batches=MAX_CALLS + 5)[:-1], call(live_module=object(), output=object())]:
        sweeps.observe(one)
    calls = sweeps._open_passes[HELD_OUT].calls
    assert len(calls) == MAX_CALLS
    assert all(each.live_module is None and each.output is None for each in calls)


def test_no_parameters_at_first():
    assert not EvaluationPassTracker()._stepped_parameters


def left(*parts):
    assert ended(*parts) == []
    return [(each.loader, each.batches) for one in told(*parts) for each in one.left_early]


PART = sweep(batches=3)[:-1]


def test_a_pass_left_early_is_returned_at_the_next_start_or_the_end():
    assert left(update(), PART, update()) == []
    assert left(update(), PART, update(), PART) == [(HELD_OUT, 3)]
    assert left(update(), PART, update(), update(), END) == [(HELD_OUT, 3)]
    assert left(update(), PART, END) == [(HELD_OUT, 3)]


@pytest.mark.parametrize(
    "parts",
    [
        (update(), PART, update(), [call()], update(), END),
        (update(), PART, update(loader=HELD_OUT), END),
        (update(), PART, PART, update(), END),
        (update(), PART, [event(TracingGap, updates=3)], update(), END),
        (update(), PART, [call(loader=None)], update(), END),
        (update(), PART[:2], update(), END),
        (PART, update(), END),
    ],
    ids=["it goes on", "trained on", "once more", "not watched", "a batch twice", "one batch", "before training"],
)
def test_open_or_intended_passes_are_not_left_early(parts):
    assert left(*parts) == []


def measured(*parts):
    held_out = HeldOutTracker()
    found = [ended for part in parts for one in part if (ended := held_out.observe(one)) is not None]
    return [(each.loader, each.training_loader) for each in found]


TRAINING = [event(BackwardStarted, loader=TRAIN), event(BackwardEnded, reached_parameters=WEIGHTS[MODEL])]


def test_a_trained_model_is_evaluated_on_another_loader():
    assert measured(TRAINING, sweep(), TRAINING, sweep(OTHER)) == [(HELD_OUT, TRAIN), (OTHER, TRAIN)]


@pytest.mark.parametrize(
    "parts",
    [
        (sweep(),),
        (TRAINING, sweep(model=TEACHER)),
        (TRAINING, sweep(TRAIN)),
        (TRAINING, sweep(backwards=1)),
        (TRAINING, sweep()[:-1]),
        (TRAINING, sweep()[-1:]),
    ],
    ids=["before training", "a teacher", "the training loader", "trained on", "left by break", "no model"],
)
def test_nothing_is_evaluated(parts):
    assert measured(*parts) == []
