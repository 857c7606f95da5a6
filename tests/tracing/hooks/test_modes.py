"""Train and eval mode: one event for each call of the program."""

import pytest
from torch import nn

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import ModeSet
from trueloop.tracing.hooks.modes import MAX_REQUESTS, Modes


@pytest.fixture
def watched():
    """An attachment of this hook only, and the events it reports."""
    events = []
    attachment = Attachment(lambda stream, program: [Modes(stream, program)])
    attachment.attach(events.append)
    yield attachment, events
    attachment.detach(events.append)
    assert not attachment.stream.problems


def test_one_event_for_a_model_with_children(watched):
    _, events = watched
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()))
    assert model.eval() is model
    model.train()
    model.train(True)
    assert [(event.module.kind, event.training, event.changed) for event in events] == [
        ("Sequential", False, True), ("Sequential", True, True), ("Sequential", True, False)
    ]  # fmt: skip
    assert all(type(event) is ModeSet and len(event.parameters) == 2 for event in events)
    assert all(event.location.source_location.path == __file__ for event in events)
    assert all(module.training for module in model.modules())


def test_a_single_child(watched):
    _, events = watched
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].eval()
    assert [(event.module.kind, event.training) for event in events] == [("BatchNorm1d", False)]


def test_an_error_does_not_disable_it(watched):
    _, events = watched
    with pytest.raises(ValueError, match="boolean"):
        nn.Linear(2, 2).train("yes")
    nn.Linear(2, 2).eval()
    assert len(events) == 1


def test_a_user_method_named_train(watched):
    _, events = watched

    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[0].eval()
            return self

    model = Frozen(nn.BatchNorm1d(2), nn.Linear(2, 2)).train()
    assert not model[0].training
    assert [event.module.kind for event in events] == ["Frozen", "BatchNorm1d"]


def test_the_number_of_requests_is_bounded(watched):
    attachment, _ = watched
    woken = []
    attachment.stream.request_full_tracing = lambda: woken.append(1)
    model = nn.Linear(2, 2)
    for _ in range(20):
        model.train()
        model.eval()
        model.eval()
    assert len(woken) == MAX_REQUESTS


def test_pytorch_is_restored():
    before = nn.Module.train
    attachment = Attachment(lambda stream, program: [Modes(stream, program)])
    listener = [].append
    attachment.attach(listener)
    assert nn.Module.train is not before
    attachment.detach(listener)
    assert nn.Module.train is before
