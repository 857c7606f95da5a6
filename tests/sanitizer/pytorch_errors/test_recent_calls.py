"""The latest forward, backward and step."""

from __future__ import annotations

import torch

from trueloop.sanitizer.pytorch_errors.recent_calls import RecentCalls
from trueloop.sanitizer.watch import Watch
from trueloop.tracing.events import Event, TracingGap


def record(memory: RecentCalls, event: Event) -> None:
    handler = memory.handlers.get(type(event))
    if handler is not None:
        handler(event)


class RecordingWatch(Watch):
    """A watch with readable recent calls."""

    def __init__(self) -> None:
        super().__init__([])
        self.memory = RecentCalls()

    def _on_event(self, event: Event) -> None:
        record(self.memory, event)


def test_the_latest_calls_are_recorded():
    model = torch.nn.Linear(2, 1)
    watch = RecordingWatch()
    with watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert watch.memory.summary().grad_mode is None
        with torch.no_grad():
            model(torch.ones(1, 2))
        assert watch.memory.summary().grad_mode is False
        loss = model(torch.ones(1, 2)).sum()
        assert watch.memory.summary().grad_mode is True
        loss.backward()
        past = watch.memory.summary()
        assert (past.forward_after_backward, past.step_after_forward, past.grad_mode) == (False, False, None)
        assert past.last_backward is not None
        assert past.last_backward.path == __file__
        optimizer.step()
        assert watch.memory.summary().step_after_forward
        model(torch.ones(1, 2))
        past = watch.memory.summary()
        assert (past.forward_after_backward, past.step_after_forward) == (True, False)
        assert len(watch.memory.models) == 1


def test_a_gap_clears_the_record():
    memory = RecentCalls()
    memory.backward_order = 3
    record(memory, TracingGap(update=9, backward_count=9, time_s=0.0, updates=4))
    assert memory.backward_order is None
