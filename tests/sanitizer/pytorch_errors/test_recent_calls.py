"""The latest forward, backward and step."""

from __future__ import annotations

import torch

from trueloop.sanitizer.pytorch_errors.recent_calls import RecentCalls
from trueloop.sanitizer.watch import Watch
from trueloop.tracing.events import Event, TracingGap


def hear(memory: RecentCalls, event: Event) -> None:
    take = memory.take.get(type(event))
    if take is not None:
        take(event)


class Heard(Watch):
    """A watch whose memory can be asked."""

    def __init__(self) -> None:
        super().__init__([])
        self.memory = RecentCalls()

    def _hear(self, event: Event) -> None:
        hear(self.memory, event)


def test_what_came_last():
    model = torch.nn.Linear(2, 1)
    watch = Heard()
    with watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert watch.memory.past().grad_mode is None
        with torch.no_grad():
            model(torch.ones(1, 2))
        assert watch.memory.past().grad_mode is False
        loss = model(torch.ones(1, 2)).sum()
        assert watch.memory.past().grad_mode is True
        loss.backward()
        past = watch.memory.past()
        assert (past.forward_after_backward, past.step_after_forward, past.grad_mode) == (False, False, None)
        assert past.last_backward is not None
        assert past.last_backward.path == __file__
        optimizer.step()
        assert watch.memory.past().step_after_forward
        model(torch.ones(1, 2))
        past = watch.memory.past()
        assert (past.forward_after_backward, past.step_after_forward) == (True, False)
        assert len(watch.memory.models) == 1


def test_a_gap_is_forgotten_over():
    memory = RecentCalls()
    memory.order = 3
    hear(memory, TracingGap(update=9, backward_count=9, time_s=0.0, updates=4))
    assert memory.order is None
