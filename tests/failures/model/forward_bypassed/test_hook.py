"""Reports of direct calls of ``forward`` of modules with hooks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.failures.model.forward_bypassed import ForwardBypassed
from trueloop.failures.model.forward_bypassed.hook import CALL_INTERVAL, FIRST_CALLS, HOOK, HOOK_KINDS
from trueloop.tracing.attach import Attachment
from trueloop.tracing.hooks.module_calls import ModuleCalls


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.body(x))

    def own(self, x):
        return self.forward(x)


class Calling(Net):
    """A model that calls its layers in a shared function."""

    def forward(self, x):
        return call(self.head, call(self.body, x))


def call(model, x):
    return model(x)


@pytest.fixture
def watched():
    """An attachment of the hook and the one whose event it needs, and its events of one type."""
    events = []
    attachment = Attachment(lambda stream, program: [ModuleCalls(stream, program), HOOK(stream, program)])
    listener = events.append
    attachment.attach(listener)
    yield lambda: [event for event in events if type(event) is ForwardBypassed]
    attachment.detach(listener)
    assert not attachment.stream.problems


@pytest.fixture
def hooked():
    model = Net()
    model.register_forward_hook(lambda module, inputs, output: None)
    return model


x = torch.ones(4, 2)


def test_a_normal_line_is_checked_rarely_and_after_a_finding_each_time(watched):
    linear, model = nn.Linear(2, 3), Calling()
    model.register_forward_hook(lambda module, inputs, output: None)
    for _ in range(FIRST_CALLS):
        call(linear, x).sum().backward()
    for _ in range(CALL_INTERVAL // 2):  # two layers each
        model.forward(x).sum().backward()
    assert len(watched()) == 1
    model.forward(x)
    assert len(watched()) == 2
    model.forward(x)
    assert len(watched()) == 3


def test_a_line_is_checked_often_again_by_the_next_watch():
    linear, model, events = nn.Linear(2, 3), Calling(), []
    model.register_forward_hook(lambda module, inputs, output: None)
    attachment = Attachment(lambda stream, program: [ModuleCalls(stream, program), HOOK(stream, program)])
    for run in (lambda: [call(linear, x) for _ in range(FIRST_CALLS + 1)], lambda: model.forward(x)):
        events.clear()
        listener = events.append
        attachment.attach(listener)
        run()
        attachment.detach(listener)
    assert [type(event) for event in events].count(ForwardBypassed) == 1


def test_it_is_reported_once_between_two_backwards(watched, hooked):
    for _ in range(3):
        out = hooked.forward(x)
    out.sum().backward()
    assert len(watched()) == 1
    (event,) = watched()
    assert (event.model.kind, event.hooks, event.also_called_normally) == ("Net", ("forward hook",), False)
    assert len(event.parameters) == 4
    assert event.location.source_location.path == __file__


@pytest.mark.parametrize(
    ("register", "kind"),
    [
        ("register_forward_pre_hook", "forward pre-hook"),
        ("register_forward_hook", "forward hook"),
        ("register_full_backward_pre_hook", "backward pre-hook"),
        ("register_full_backward_hook", "backward hook"),
    ],
)
def test_each_kind_of_hook(watched, register, kind):
    model = Net()
    getattr(model, register)(lambda *anything: None)
    model.forward(x)
    assert [event.hooks for event in watched()] == [(kind,)]
    assert kind in HOOK_KINDS.values()


def test_an_earlier_normal_call_is_recorded(watched, hooked):
    whole = nn.Sequential(hooked)
    whole(x)
    hooked.forward(x)
    assert [event.also_called_normally for event in watched()] == [True]


def test_the_outermost_module_is_reported(watched, hooked):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = hooked

        def forward(self, x):
            return self.inner.forward(x)

    outer = Outer()
    outer.register_forward_hook(lambda module, inputs, output: None)
    outer.forward(x)
    assert {event.model.kind for event in watched()} == {"Outer"}


def test_cases_without_an_event(watched, hooked):
    hooked(x)
    hooked.own(x)
    Net().forward(x)
    with torch.no_grad():
        hooked.forward(x)
    nn.Sequential(Net())(x)
    assert not watched()


def test_no_object_is_kept_alive(watched, hooked):
    import gc
    import weakref

    def once():
        model = Net()
        model.register_forward_hook(lambda module, inputs, output: None)
        model.forward(x)
        return weakref.ref(model)

    known = once()
    gc.collect()
    assert len(watched()) == 1
    assert known() is None
