"""What is told of optimizers that never step."""

import pytest
import torch
from torch import nn

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import StepMissing
from trueloop.tracing.hooks import all_hooks
from trueloop.tracing.hooks.never_stepped import MIN_BACKWARDS
from trueloop.tracing.program_text import attribute_readers


@pytest.fixture
def heard():
    events = []

    def hear(event):  # while it is told, its texts can be read
        if type(event) is StepMissing:
            events.append((event.watch_ended, event.backwards, event.called_by_user, bool(event.read_modules(True))))

    attachment = Attachment(all_hooks)
    attachment.attach(hear)
    yield events
    for farewell in attachment.stream.on_detach:
        farewell()
    attachment.detach(hear)
    assert not attachment.stream.problems


def backwards(model, count, after=lambda turn: None):
    for turn in range(count):
        model(torch.randn(8, 4)).square().mean().backward()
        after(turn)


def test_it_is_reported_after_enough_backwards_and_at_the_end(heard):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backwards(model, MIN_BACKWARDS - 1)
    assert not heard
    backwards(model, 3)
    assert heard == [(False, MIN_BACKWARDS, True, True)]
    del optimizer, model


def test_no_event_if_it_steps_or_weights_change_or_are_shared(heard):
    stepped, changed, shared = (nn.Linear(4, 1) for _ in range(3))
    optimizer = torch.optim.SGD(stepped.parameters(), lr=0.1)
    others = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (changed, shared, shared)]
    backwards(stepped, 2 * MIN_BACKWARDS, lambda turn: optimizer.step() if turn % 5 == 4 else None)
    backwards(changed, 2 * MIN_BACKWARDS, lambda turn: changed.weight.data.add_(0.1))
    backwards(shared, 2 * MIN_BACKWARDS)
    assert not heard
    assert len(others) == 3


def test_unreadable_files_give_no_result(tmp_path):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import torch\n")
    bad.write_text("import (\n")
    assert set(attribute_readers.parse_files([str(good)], True)) == {str(good)}
    assert attribute_readers.parse_files([str(good), str(bad)], False) == {}


def test_at_a_prompt_there_are_no_files(monkeypatch):
    assert __file__ in attribute_readers.running_files()
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    assert not attribute_readers.running_files()
