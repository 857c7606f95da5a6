"""The updates that are fully traced."""

import itertools
from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import BackwardEnded, Event, StepTaken, TracingGap
from trueloop.tracing.hooks import all_hooks
from trueloop.tracing.sampling import (
    BURST_INTERVAL,
    BURST_UPDATES,
    CHECK_INTERVAL,
    EMERGENCY_S,
    INITIAL_UPDATES,
    LATE_CHECK_INTERVAL,
    MAX_BACKWARDS,
    MAX_BATCHES,
    TOO_SLOW,
    burst_interval,
)


class CountedEvents:
    """An attachment, and the number of reported events by type."""

    def __init__(self) -> None:
        self.attachment = Attachment(all_hooks)
        self.kinds: list[type[Event]] = []
        self.steps: list[int] = []
        """Number of updates before each traced step."""
        self.attachment.attach(self.record)

    def record(self, event: Event) -> None:
        self.kinds.append(type(event))
        if isinstance(event, StepTaken):
            self.steps.append(event.update)

    def count(self, kind: type[Event]) -> int:
        return self.kinds.count(kind)


@pytest.fixture
def seen() -> Iterator[CountedEvents]:
    seen = CountedEvents()
    yield seen
    seen.attachment.detach(seen.record)
    assert not seen.attachment.stream.problems


COMPLETE_UPDATES = BURST_UPDATES - 1  # the first update of a burst ends a window whose start was not traced


def sgd(updates: int, weight: nn.Parameter | None = None) -> None:
    """Make updates with a new optimizer."""
    weight = nn.Parameter(torch.ones(1)) if weight is None else weight
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for _ in range(updates):
        (weight * weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_first_updates_are_traced_in_full_then_bursts_at_fixed_updates(seen: CountedEvents):
    traced = seen.steps
    sgd(INITIAL_UPDATES + 4 * BURST_INTERVAL)
    assert traced[:INITIAL_UPDATES] == list(range(INITIAL_UPDATES))
    late = traced[INITIAL_UPDATES:]
    bursts = [late[start : start + COMPLETE_UPDATES] for start in range(0, len(late), COMPLETE_UPDATES)]
    assert all(after - before == 1 for burst in bursts for before, after in pairwise(burst))
    assert {after[0] - before[0] for before, after in pairwise(bursts)} == {BURST_INTERVAL}
    assert len(bursts) == 4
    assert seen.count(TracingGap) == 4


def test_bursts_become_rarer_with_the_length_of_the_run():
    assert [burst_interval(update) for update in (0, 1023, 1024, 2047, 2048, 1 << 20)] == [
        128,
        128,
        256,
        256,
        512,
        1 << 18,
    ]


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e3])
def test_what_is_traced_does_not_depend_on_the_time_it_takes(
    seen: CountedEvents, monkeypatch: pytest.MonkeyPatch, seconds: float
):
    start_s, ticks = perf_counter(), itertools.count()
    monkeypatch.setattr("trueloop.tracing.sampling.perf_counter", lambda: start_s + seconds * next(ticks))
    sgd(INITIAL_UPDATES + 2 * BURST_INTERVAL)
    assert seen.count(StepTaken) == INITIAL_UPDATES + 2 * COMPLETE_UPDATES
    assert not seen.attachment.stream.problems


def test_a_program_that_tracing_slows_down_too_much_is_traced_less_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
):
    seen = CountedEvents()
    seen.attachment.stream.overhead_s += 1.0
    sgd(CHECK_INTERVAL)
    seen.attachment.stream.overhead_s += 10 * EMERGENCY_S
    sgd(INITIAL_UPDATES)
    assert seen.count(StepTaken) <= 2 * CHECK_INTERVAL + 1
    assert seen.attachment.stream.problems == [TOO_SLOW]
    seen.attachment.detach(seen.record)


def test_checks_are_frequent_at_first_and_rare_later(seen: CountedEvents):
    stream, checked = seen.attachment.stream, list[int]()
    stream.periodic_checks.append(lambda: checked.append(stream.update))
    sgd(INITIAL_UPDATES)
    assert {after - before for before, after in pairwise(checked)} == {CHECK_INTERVAL}
    checked.clear()
    sgd(10 * LATE_CHECK_INTERVAL)
    assert {after - before for before, after in pairwise(checked)} <= {CHECK_INTERVAL, LATE_CHECK_INTERVAL}
    assert len(checked) <= 11
    stream.periodic_checks.clear()


def test_a_long_validation_pass_interrupts_full_tracing_until_the_next_update(seen: CountedEvents):
    sgd(10)
    validation = DataLoader(TensorDataset(torch.randn(2 * MAX_BATCHES, 2)), 1)
    for _ in validation:
        pass
    assert not seen.attachment.stream.full_tracing
    before = seen.count(StepTaken)
    sgd(10)
    assert seen.attachment.stream.full_tracing
    assert seen.count(StepTaken) - before >= 8


def test_windows_of_many_batches_are_fully_traced(seen: CountedEvents):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(600, 2)), 1)
    for index, (x,) in enumerate(loader, 1):
        (model(x).square().mean() / 200).backward()
        if index % 200 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert (seen.count(BackwardEnded), seen.count(StepTaken), seen.count(TracingGap)) == (600, 3, 0)


def test_full_tracing_ends_also_without_an_update(seen: CountedEvents):
    weight = torch.ones(1, requires_grad=True)
    for _ in range(MAX_BACKWARDS + 50):
        (weight * weight).sum().backward()
        weight.grad = None
    assert seen.count(BackwardEnded) == MAX_BACKWARDS
    assert not seen.attachment.stream.full_tracing


def test_updates_without_an_optimizer_are_sampled_too(seen: CountedEvents):
    weight = torch.ones(1, requires_grad=True)
    for _ in range(2 * INITIAL_UPDATES):
        (weight * weight).sum().backward()
        with torch.no_grad():
            weight -= 0.001 * weight.grad
            weight.grad = None
    stream = seen.attachment.stream
    assert stream.update == 2 * INITIAL_UPDATES - 1, "the last update is seen when the watch ends"
    assert INITIAL_UPDATES < seen.count(BackwardEnded) < INITIAL_UPDATES + 100
    assert seen.count(TracingGap) == 4


def test_changes_of_structure_are_traced(seen: CountedEvents):
    weight = nn.Parameter(torch.ones(1))
    sgd(INITIAL_UPDATES + 20, weight)
    before = seen.count(StepTaken)
    sgd(4, weight)
    assert seen.count(StepTaken) - before == 4, "a new optimizer is a change of structure"
    before = seen.count(StepTaken)
    for _ in range(400):
        sgd(1, weight)
    assert seen.count(StepTaken) - before < 250, "a change in every update is not traced every time"
