"""When a run is watched in full."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trueloop.tracing import sampling
from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import BackwardEnded, Event, StepTaken, TracingGap
from trueloop.tracing.hooks import all_hooks
from trueloop.tracing.sampling import (
    CHECK_INTERVAL,
    EARLY_UPDATES,
    INITIAL_UPDATES,
    MAX_BACKWARDS,
    MAX_CHECK_INTERVAL,
    UNBUDGETED_UPDATES,
)


class Seen:
    """An attachment, and how many events of a kind it told."""

    def __init__(self) -> None:
        self.attachment = Attachment(all_hooks)
        self.kinds: list[type[Event]] = []
        self.attachment.attach(self.hear)

    def hear(self, event: Event) -> None:
        self.kinds.append(type(event))

    def count(self, kind: type[Event]) -> int:
        return self.kinds.count(kind)


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.attachment.detach(seen.hear)
    assert not seen.attachment.stream.problems


def test_the_first_updates_are_traced_in_full_then_bursts(seen: Seen):
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for update in range(400):
        (weight * weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if update == INITIAL_UPDATES - 1:
            assert seen.count(StepTaken) == INITIAL_UPDATES
            assert not seen.attachment.stream.full_tracing
    assert seen.attachment.stream.update == 400
    assert INITIAL_UPDATES < seen.count(StepTaken) < 400
    assert seen.count(TracingGap) > 0


def test_checks_become_rare_in_a_long_run_of_fast_updates(seen: Seen, monkeypatch: pytest.MonkeyPatch):
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    stream, looked = seen.attachment.stream, list[int]()
    stream.periodic_checks.append(lambda: looked.append(stream.update))

    def pauses(updates: int) -> set[int]:
        looked.clear()
        for _ in range(updates):
            weight.grad = torch.ones(1)
            optimizer.step()
        return {after - before for before, after in pairwise(looked)}

    monkeypatch.setattr(sampling, "CHECK_INTERVAL_S", 1000.0)
    assert pauses(EARLY_UPDATES) == {CHECK_INTERVAL}
    assert max(pauses(10 * MAX_CHECK_INTERVAL)) == MAX_CHECK_INTERVAL
    monkeypatch.setattr(sampling, "CHECK_INTERVAL_S", 0.0)
    pauses(2 * MAX_CHECK_INTERVAL)
    assert pauses(2 * MAX_CHECK_INTERVAL) == {CHECK_INTERVAL}
    stream.periodic_checks.clear()


def test_windows_of_many_batches_are_fully_traced(seen: Seen):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(600, 2)), 1)
    for index, (x,) in enumerate(loader, 1):
        (model(x).square().mean() / 200).backward()
        if index % 200 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert (seen.count(BackwardEnded), seen.count(StepTaken), seen.count(TracingGap)) == (600, 3, 0)


def test_full_tracing_ends_also_without_an_optimizer(seen: Seen):
    weight = torch.ones(1, requires_grad=True)
    for _ in range(MAX_BACKWARDS + 50):
        (weight * weight).sum().backward()
        with torch.no_grad():
            weight -= 0.01 * weight.grad
            weight.grad = None
    assert seen.count(BackwardEnded) == MAX_BACKWARDS
    assert not seen.attachment.stream.full_tracing


def test_changes_of_structure_are_traced_within_the_budget(seen: Seen, monkeypatch: pytest.MonkeyPatch):
    sampling = seen.attachment.sampling
    weight = nn.Parameter(torch.ones(1))

    def train(updates: int) -> int:
        before = seen.count(StepTaken)
        optimizer = torch.optim.SGD([weight], lr=0.01)
        for _ in range(updates):
            (weight * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return seen.count(StepTaken) - before

    assert train(INITIAL_UPDATES + 10) == INITIAL_UPDATES
    assert train(4) == 4, "a new optimizer is a change of structure"
    while sampling.updates_traced < UNBUDGETED_UPDATES:
        train(20)
    monkeypatch.setattr("trueloop.tracing.sampling.UNBUDGETED_S", 0.0)
    monkeypatch.setattr("trueloop.tracing.sampling.OVERHEAD_SHARE", 0.0)
    assert train(1) <= 1
    assert train(20) == 0, "nothing more can be afforded"


def test_sampled_tracing_does_not_use_the_budget_of_bursts(seen: Seen):
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    stream, sampling = seen.attachment.stream, seen.attachment.sampling

    def train(updates: int) -> None:
        for _ in range(updates):
            (weight * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    while sampling.updates_traced < UNBUDGETED_UPDATES or stream.full_tracing:
        train(1)
    watched = sampling.updates_traced
    stream.overhead_s += 1e6  # of thousands of epochs that began and ended, each of which is told
    train(200)
    assert sampling.updates_traced > watched
