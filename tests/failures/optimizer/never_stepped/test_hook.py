"""Reports of optimizers that never step."""

import pytest
import torch
from torch import nn

from trueloop.failures.optimizer.never_stepped import MIN_BACKWARDS, StepMissing
from trueloop.failures.optimizer.never_stepped.hook import HOOK
from trueloop.tracing.attach import Attachment
from trueloop.tracing.hooks import all_hooks


@pytest.fixture
def recorded():
    events = []

    def listener(event):
        if type(event) is StepMissing:
            events.append((event.watch_ended, event.backwards, event.called_by_user, __file__ in event.files))

    attachment = Attachment(lambda stream, program: [*all_hooks(stream, program), HOOK(stream, program)])
    attachment.attach(listener)
    yield events
    for callback in attachment.stream.on_detach:
        callback()
    attachment.detach(listener)
    assert not attachment.stream.problems


def run_backward_passes(model, count, after=lambda index: None):
    for index in range(count):
        model(torch.randn(8, 4)).square().mean().backward()
        after(index)


def test_it_is_reported_after_enough_backwards_and_at_the_end(recorded):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run_backward_passes(model, MIN_BACKWARDS - 1)
    assert not recorded
    run_backward_passes(model, 3)
    assert recorded == [(False, MIN_BACKWARDS, True, True)]
    del optimizer, model


def test_no_event_if_it_steps_or_weights_change_or_are_shared(recorded):
    stepped, changed, shared = (nn.Linear(4, 1) for _ in range(3))
    optimizer = torch.optim.SGD(stepped.parameters(), lr=0.1)
    others = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (changed, shared, shared)]
    run_backward_passes(stepped, 2 * MIN_BACKWARDS, lambda turn: optimizer.step() if turn % 5 == 4 else None)
    run_backward_passes(changed, 2 * MIN_BACKWARDS, lambda turn: changed.weight.data.add_(0.1))
    run_backward_passes(shared, 2 * MIN_BACKWARDS)
    assert not recorded
    assert len(others) == 3


def test_at_a_prompt_there_are_no_files(recorded, monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run_backward_passes(model, MIN_BACKWARDS)
    assert recorded == [(False, MIN_BACKWARDS, True, False)]
    del optimizer
