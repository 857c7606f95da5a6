"""The numbers of backward passes before each step of an optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.tracing.events import BackwardEnded
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows


@pytest.fixture
def windows(track) -> AccumulationWindows:
    return track(AccumulationWindows)


@pytest.fixture
def ref(attached):
    return attached[0].stream.registry.ref


def test_two_optimizers_with_windows_of_different_sizes(windows, ref):
    models = [nn.Linear(2, 1) for _ in range(2)]
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for model in models)
    for _ in range(2):
        for _ in range(3):
            models[0](torch.ones(1, 2)).sum().backward()
        first.step()
        (models[0](torch.ones(1, 2)) + models[1](torch.ones(1, 2))).sum().backward()
        second.step()
    assert (windows.ended_by(ref(first)).backwards, windows.ended_by(ref(second)).backwards) == (4, 1)
    first.step()
    assert (windows.ended_by(ref(first)).backwards, windows.ended_by(ref(models[0])).backwards) == (1, 0)


def test_parameters_without_a_model_are_counted_from_their_first_step(windows, ref):
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    found = []
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
        found.append(windows.ended_by(ref(optimizer)).backwards)
        optimizer.zero_grad()
    assert found == [0, 1, 1]


def test_the_latest_backward_has_the_batch(windows, attached):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
    seen = []
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(windows.latest_backward)
    assert seen == attached[1](BackwardEnded)
    assert len({event.batch for event in seen}) == 2
    assert {event.loader.kind for event in seen} == {"DataLoader"}


def test_windows_are_discarded_after_a_gap(windows, ref, attached):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while attached[0].stream.full_tracing:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    model(torch.ones(1, 2)).sum().backward()
    attached[0].sampling._start_full(3)
    optimizer.step()
    attached[0].sampling._start_full(3)
    assert windows.ended_by(ref(optimizer)).backwards <= 1
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert windows.ended_by(ref(optimizer)).backwards == 2
