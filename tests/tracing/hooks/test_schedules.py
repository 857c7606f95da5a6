"""Schedulers: one event for each step that the program calls, even if the scheduler calls itself internally."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as L

from trueloop.tracing.events import SchedulerStepped
from trueloop.tracing.hooks.schedules import Schedules
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.stream import EventStream

MAKERS = {
    "StepLR": (lambda o: L.StepLR(o, 2), None),
    "MultiStepLR": (lambda o: L.MultiStepLR(o, [3, 7]), 7),
    "ConstantLR": (lambda o: L.ConstantLR(o, total_iters=4), 4),
    "LinearLR": (lambda o: L.LinearLR(o, total_iters=6), 6),
    "ExponentialLR": (lambda o: L.ExponentialLR(o, 0.9), None),
    "PolynomialLR": (lambda o: L.PolynomialLR(o, total_iters=9), 9),
    "CosineAnnealingLR": (lambda o: L.CosineAnnealingLR(o, T_max=8), 8),
    "CosineAnnealingWarmRestarts": (lambda o: L.CosineAnnealingWarmRestarts(o, 3), None),
    "CyclicLR": (lambda o: L.CyclicLR(o, 0.01, 0.1, step_size_up=2), None),
    "OneCycleLR": (lambda o: L.OneCycleLR(o, 0.1, total_steps=12), 12),
    "LambdaLR": (lambda o: L.LambdaLR(o, lambda e: 0.5**e), None),
    "MultiplicativeLR": (lambda o: L.MultiplicativeLR(o, lambda e: 0.5), None),
    "ReduceLROnPlateau": (L.ReduceLROnPlateau, None),
    "SequentialLR": (
        lambda o: L.SequentialLR(o, [L.LinearLR(o, total_iters=3), L.CosineAnnealingLR(o, 10)], [3]),
        13,
    ),
    "ChainedScheduler": (lambda o: L.ChainedScheduler([L.LinearLR(o), L.CosineAnnealingLR(o, 5)]), 5),
}


class ScheduleEvents:
    """The hook of schedulers, and the events that it reports."""

    def __init__(self) -> None:
        self.stream, self.program, self.events = EventStream(), ProgramState(), []
        self.patches = Patches()
        self.hook = Schedules(self.stream, self.program)
        self.stream.subscribe(self.events.append)


@pytest.fixture
def recorded() -> Iterator[ScheduleEvents]:
    recorded = ScheduleEvents()
    recorded.stream.active = True
    recorded.hook.install_always(recorded.patches)
    yield recorded
    recorded.patches.restore()
    assert not recorded.stream.problems


def trained():
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def advance(scheduler, optimizer) -> None:
    optimizer.step()
    scheduler.step(1.0) if isinstance(scheduler, L.ReduceLROnPlateau) else scheduler.step()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.filterwarnings("ignore")
def test_one_event_for_each_step_and_none_while_it_is_made(recorded: ScheduleEvents, kind: str):
    make, horizon = MAKERS[kind]
    _, optimizer = trained()
    scheduler = make(optimizer)
    assert recorded.events == []
    for count in (1, 2, 3):
        before = optimizer.param_groups[0]["lr"]
        advance(scheduler, optimizer)
        event = recorded.events.pop()
        assert recorded.events == []
        assert isinstance(event, SchedulerStepped)
        assert (event.kind, event.planned_steps) == (kind, horizon)
        assert (event.rates_before, event.rates_after) == ((before,), (optimizer.param_groups[0]["lr"],))
        assert event.location is not None
        assert event.location.source_location.path == __file__
        assert event.last_epoch == count


@pytest.mark.parametrize("last", [L.LinearLR, lambda o: L.StepLR(o, 3), L.ExponentialLR])
def test_a_sequence_with_an_open_last_member_has_no_end(recorded: ScheduleEvents, last):
    _, optimizer = trained()
    last = last(optimizer) if last is not L.ExponentialLR else last(optimizer, 0.9)
    scheduler = L.SequentialLR(optimizer, [L.ConstantLR(optimizer, total_iters=2), last], [2])
    advance(scheduler, optimizer)
    assert recorded.events[0].planned_steps is None


def test_a_custom_scheduler_is_reported_as_the_one_it_steps(recorded: ScheduleEvents):
    class WarmUp(L.LRScheduler):
        def __init__(self, optimizer, after):
            self.after = after
            super().__init__(optimizer)

        def get_lr(self):
            return [group["lr"] for group in self.optimizer.param_groups]

        def step(self, epoch=None):
            if self.last_epoch < 1:
                super().step(epoch)
            else:
                self.after.step()

    _, optimizer = trained()
    scheduler = WarmUp(optimizer, L.CosineAnnealingLR(optimizer, 4))
    recorded.events.clear()
    for _ in range(4):
        advance(scheduler, optimizer)
    assert [event.kind for event in recorded.events] == [
        "WarmUp",
        "CosineAnnealingLR",
        "CosineAnnealingLR",
        "CosineAnnealingLR",
    ]


def test_sampled_tracing_reports_rare_steps_and_those_past_the_end(recorded: ScheduleEvents):
    _, optimizer = trained()
    scheduler = L.CosineAnnealingLR(optimizer, 6)
    recorded.stream.full_tracing = False
    for step in range(1, 20):
        recorded.program.optimizers.put(optimizer, OptimizerState(steps=step))
        advance(scheduler, optimizer)
    assert [event.last_epoch for event in recorded.events] == [7, 8, 9, 10, 6 + 8]
    recorded.events.clear()
    for epoch in range(1, 4):
        recorded.program.optimizers.put(optimizer, OptimizerState(steps=19 + 100 * epoch))
        advance(scheduler, optimizer)
    assert [event.last_epoch for event in recorded.events] == [20, 21, 22]
    assert [event.optimizer_steps for event in recorded.events] == [119, 219, 319]


def test_a_rate_that_is_a_tensor_is_read_on_the_cpu_only(recorded: ScheduleEvents):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
    scheduler = L.ExponentialLR(optimizer, 0.5)
    advance(scheduler, optimizer)
    assert (recorded.events[0].rates_before, recorded.events[0].rates_after) == ((0.5,), (0.25,))
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros((), device="meta")
    advance(scheduler, optimizer)
    assert (recorded.events[1].rates_before, recorded.events[1].rates_after) == ((), ())


def test_it_passes_on_arguments_results_and_errors(recorded: ScheduleEvents):
    _, optimizer = trained()
    scheduler = L.OneCycleLR(optimizer, 0.1, total_steps=2)
    advance(scheduler, optimizer)
    advance(scheduler, optimizer)
    with pytest.raises(ValueError, match="total steps"):
        advance(scheduler, optimizer)
    restarts = L.CosineAnnealingWarmRestarts(optimizer, 3)
    restarts.step(1.5)
    assert recorded.events[-1].last_epoch == 1
    pickle.dumps(restarts.state_dict())


def test_pytorch_still_warns_of_scheduler_steps_before_optimizer_steps(recorded: ScheduleEvents):
    _, optimizer = trained()
    scheduler = L.StepLR(optimizer, 2)
    with pytest.warns(UserWarning, match="before"):
        scheduler.step()
    assert recorded.events[0].optimizer_steps == 0


def test_after_detaching_nothing_is_emitted():
    it, original = ScheduleEvents(), L.LRScheduler.step
    it.stream.active = True
    it.hook.install_always(it.patches)
    assert L.LRScheduler.step is not original
    it.stream.active = False
    _, optimizer = trained()
    scheduler = L.StepLR(optimizer, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler.step()
    assert it.events == []
    it.patches.restore()
    assert L.LRScheduler.step is original
