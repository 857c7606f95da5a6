"""What is told of graphs that are retained, and that torch is as it was afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.sanitizer.watch import _attachment
from trueloop.tracing.events import GraphsRetained
from trueloop.tracing.hooks import retained_graphs


@pytest.fixture
def told():
    events = []
    attachment = _attachment()

    def hear(event):  # others hold the output of a model, and so its graph
        if type(event) is GraphsRetained:
            events.append(event)

    own = torch.autograd.backward
    attachment.attach(hear)
    yield events
    attachment.detach(hear)
    assert not attachment.stream.problems
    assert torch.autograd.backward is own


def train(updates, again=lambda step, loss: None, make=lambda model, x: model(x).square().mean()):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(updates):
        loss = make(model, torch.randn(8, 4))
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        again(step, loss)
        optimizer.step()


def test_it_is_reported_once_when_enough_graphs_are_freed(told):
    train(16)
    (event,) = told
    assert event.count == retained_graphs.MIN_GRAPHS
    assert event.update == retained_graphs.MIN_GRAPHS
    assert event.location.source_location.path == __file__
    assert event.location.source_location.function == "train"


def test_too_few(told):
    train(retained_graphs.MIN_GRAPHS)
    assert not told


@pytest.mark.parametrize("when", [0, 5, 11])
def test_any_second_backward_is_enough(told, when):
    def again(step, loss):
        if step == when:
            leaf = loss.grad_fn.next_functions[0][0]
            torch.autograd.grad(loss, torch.autograd.graph.GradientEdge(leaf, 0))

    train(16, again)
    assert not told


def test_a_backward_through_a_part_of_the_graph(told):
    parts = []

    def make(model, x):
        parts[:] = [model[1](model[0](x))]
        return model[2](parts[0]).square().mean()

    train(16, lambda step, loss: parts[0].sum().backward() if step == 3 else None, make)
    assert not told


def test_custom_autograd_functions(told):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    train(16, make=lambda model, x: Double.apply(model(x)).square().mean())
    assert len(told) == 1


def test_a_graph_that_is_too_large_is_not_judged(told, monkeypatch):
    monkeypatch.setattr(retained_graphs, "MAX_NODES", 4)
    train(16)
    assert not told


def test_graphs_still_alive_are_not_counted(told):
    kept = []
    train(16, lambda step, loss: kept.append(loss))
    assert not told


def test_gradients_are_the_same():
    def gradients():
        torch.manual_seed(0)
        found = []
        train(16, lambda step, loss: (loss.backward(), found.append(loss.item())))
        return found

    bare = gradients()
    attachment, hear = _attachment(), lambda event: None
    attachment.attach(hear)
    try:
        assert gradients() == bare
    finally:
        attachment.detach(hear)
