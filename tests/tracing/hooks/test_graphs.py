"""Graphs that outlive their update."""

import gc
import itertools

import pytest
import torch
from torch import nn

from trueloop.tracing.events import GraphsAlive
from trueloop.tracing.hooks import graphs


@pytest.fixture
def train(everything):
    """Make updates in full, give each output to a function, and return what was told."""
    attachment, told = everything
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(use, updates=60):
        for number in range(updates):
            attachment.sampling._start_full(4)
            optimizer.zero_grad()
            out = model(torch.ones(3, 2))
            out.sum().backward(retain_graph=True)
            optimizer.step()
            use(number, out)
            del out
        return told(GraphsAlive)

    return train


def test_graphs_that_are_held(train):
    kept = []
    first, *later = train(lambda number, out: kept.append(out))
    assert first.oldest_update == 0
    assert first.count >= graphs.MIN_UPDATES
    assert first.location.source_location.path == __file__
    assert any(words.startswith("kept[*] (local of test_graphs_that_are_held") for words in first.holders)
    assert first.stored_at.path == __file__
    counts = [event.count for event in (first, *later)]
    assert all(after > 2 * before for before, after in itertools.pairwise(counts))


def test_a_running_total_with_its_graph(train):
    total = {}

    def add(number, out):
        total["loss"] = total.get("loss", 0) + out.sum()

    first, *_ = train(add)
    assert "total['loss']" in " ".join(first.holders)


@pytest.mark.parametrize("way", ["not kept", "a few", "now and then all are dropped", "detached", "values"])
def test_graphs_that_are_freed(train, way):
    kept = []

    def use(number, out):
        if way in ("a few", "now and then all are dropped"):
            kept.append(out)
        if way == "a few" and len(kept) > 15:
            kept.pop(0)
        if way == "now and then all are dropped" and number % 18 == 17:
            kept.clear()
        if way == "detached":
            kept.append(out.detach())
        if way == "values":
            kept.append(out.sum().item())

    assert train(use) == []


def test_graphs_in_a_reference_cycle_are_not_reported(train):
    gc.collect()
    gc.disable()

    def tie(number, out):
        knot = [out]
        knot.append(knot)

    try:
        assert train(tie) == []
    finally:
        gc.enable()


def test_without_graphs_there_are_no_markers(everything):
    attachment, told = everything
    model = nn.Linear(2, 1)
    with torch.no_grad():
        kept = [model(torch.ones(1, 2)) for _ in range(50)]
    (source,) = (each for each in attachment._hooks if isinstance(each, graphs.Graphs))
    assert len(kept) == 50
    assert not source._outputs.created
    assert not source._parameters.created
    assert told(GraphsAlive) == []


def test_markers_of_freed_graphs_are_dropped(everything, monkeypatch):
    attachment, _ = everything
    monkeypatch.setattr(graphs, "MAX_MARKERS", 8)
    (source,) = (each for each in attachment._hooks if isinstance(each, graphs.Graphs))
    marked = source._outputs
    marked._limit = 8
    model = nn.Linear(2, 1)
    kept = [model(torch.ones(1, 2)) for _ in range(4)]
    for _ in range(200):
        model(torch.ones(1, 2))
    assert {mark() for mark in marked.alive} == {out.grad_fn.metadata[graphs.KEY] for out in kept}
    assert len(marked.alive) == 4
    assert set(marked.alive) < set(marked.created)
    assert len(marked.created) <= 16
    del kept
    assert not marked.alive
