"""Which passes over a loader are evaluations, according to their events."""

from dataclasses import fields

import pytest

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
    handlers,
)
from trueloop.tracing.trackers.evaluation_passes import MAX_CALLS, EvaluationPassTracker, HeldOutTracker

TRAIN, HELD_OUT, OTHER = (Ref("DataLoader", name) for name in ("train", "held out", "other"))
MODEL, TEACHER = Ref("Net", "model"), Ref("Net", "teacher")
WEIGHTS = {MODEL: frozenset({Ref("Parameter", "w")}), TEACHER: frozenset({Ref("Parameter", "v")})}


def event(event_type, **values):
    """Create an event; fields without a value are 0 or None."""
    defaults = {field.name: None for field in fields(event_type)}
    return event_type(**defaults | {"update": 0, "backward_count": 0, "time_s": 0.0} | values)


def call(model=MODEL, loader=HELD_OUT, **fields):
    return event(ModelCalled, model=model, loader=loader, parameters=WEIGHTS[model], recomputed=False, **fields)


def update(model=MODEL, loader=TRAIN):
    return [event(BackwardStarted, loader=loader), event(StepTaken, parameters=WEIGHTS[model])]


def evaluation_pass(loader=HELD_OUT, batches=2, model=MODEL, events_per_batch=(), backwards=0):
    batch_events = [each for _ in range(batches) for each in (call(model, loader), *events_per_batch)]
    end = event(LoaderExhausted, loader=loader, batches=batches, backwards=backwards)
    return [event(LoaderStarted, loader=loader), *batch_events, end]


END = [event(WatchEnded, update=9)]


def trace_with(tracker, *parts):
    """Return the events that the tracker derives from the given events."""
    methods = handlers(type(tracker))
    events = [each for part in parts for each in part if type(each) in methods]
    derived = [getattr(tracker, methods[type(each)])(each) for each in events]
    return [each for each in derived if each is not None]


def trace(*parts):
    return trace_with(EvaluationPassTracker(), *parts)


def finished_passes(*parts):
    return [each for result in trace(*parts) for each in result.passes]


def test_evaluation_passes_between_updates_and_at_the_end():
    found = finished_passes(update(), evaluation_pass(), update(), evaluation_pass(batches=3), END)
    assert [(one.loader, one.batches, len(one.calls)) for one in found] == [(HELD_OUT, 2, 2), (HELD_OUT, 3, 3)]
    assert found[0].models == [MODEL]
    assert not any(one.repeated for one in found)


def test_nothing_is_returned_before_what_follows_is_known():
    assert finished_passes(update(), evaluation_pass()) == []


@pytest.mark.parametrize(
    "parts",
    [
        (evaluation_pass(), END),
        (update(), evaluation_pass(model=TEACHER), END),
        (update(), evaluation_pass(events_per_batch=update(loader=HELD_OUT)), END),
        (update(), evaluation_pass(backwards=1), END),
        (update(), evaluation_pass(TRAIN), END),
        (update(), evaluation_pass(OTHER), update(loader=OTHER)),
        (update(), evaluation_pass()[:-1], END),
        (update(), evaluation_pass(), [event(TracingGap, updates=3)], END),
        (update(), [event(LoaderStarted, loader=HELD_OUT)], evaluation_pass()[-1:], END),
    ],
    ids=[
        "before training", "a teacher", "trained within", "trained while unseen", "the training loader",
        "a sum over an epoch", "left by break", "not watched after it", "no model",
    ],
)  # fmt: skip
def test_no_evaluation_pass(parts):
    assert finished_passes(*parts) == []


def test_the_same_loader_again():
    found = finished_passes(update(), evaluation_pass(), evaluation_pass(OTHER), evaluation_pass(), update())
    assert [(one.loader, one.repeated) for one in found] == [(HELD_OUT, True), (OTHER, False), (HELD_OUT, True)]


def test_the_same_loader_again_by_another_model():
    found = finished_passes(update(), update(TEACHER), evaluation_pass(), evaluation_pass(model=TEACHER), update())
    assert [(one.models, one.repeated) for one in found] == [([each], False) for each in (MODEL, TEACHER)]


def test_the_same_batch_again():
    assert [
        one.repeated for one in finished_passes(update(), evaluation_pass(events_per_batch=[call(loader=None)]), END)
    ] == [True]
    assert [
        one.repeated for one in finished_passes(update(), evaluation_pass(events_per_batch=[call(TEACHER, None)]), END)
    ] == [False]


def test_no_object_of_the_program_is_kept():
    sweeps = EvaluationPassTracker()
    for one in [*update(), *evaluation_pass(batches=MAX_CALLS + 5)[:-1], call(live_module=object(), output=object())]:
        trace_with(sweeps, [one])
    calls = sweeps._open_passes[HELD_OUT].calls
    assert len(calls) == MAX_CALLS
    assert all(each.live_module is None and each.output is None for each in calls)


def test_no_parameters_at_first():
    assert not EvaluationPassTracker()._stepped_parameters


def left(*parts):
    assert finished_passes(*parts) == []
    return [(each.loader, each.batches) for one in trace(*parts) for each in one.left_early]


PART = evaluation_pass(batches=3)[:-1]


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
    found = trace_with(HeldOutTracker(), *parts)
    return [(each.loader, each.training_loader) for each in found]


TRAINING = [event(BackwardStarted, loader=TRAIN), event(BackwardEnded, reached_parameters=WEIGHTS[MODEL])]


def test_a_trained_model_is_evaluated_on_another_loader():
    assert measured(TRAINING, evaluation_pass(), TRAINING, evaluation_pass(OTHER)) == [
        (HELD_OUT, TRAIN),
        (OTHER, TRAIN),
    ]


@pytest.mark.parametrize(
    "parts",
    [
        (evaluation_pass(),),
        (TRAINING, evaluation_pass(model=TEACHER)),
        (TRAINING, evaluation_pass(TRAIN)),
        (TRAINING, evaluation_pass(backwards=1)),
        (TRAINING, evaluation_pass()[:-1]),
        (TRAINING, evaluation_pass()[-1:]),
    ],
    ids=["before training", "a teacher", "the training loader", "trained on", "left by break", "no model"],
)
def test_nothing_is_evaluated(parts):
    assert measured(*parts) == []
