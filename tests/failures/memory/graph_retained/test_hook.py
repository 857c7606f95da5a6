"""Reports of retained graphs, and the removal of the hooks afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.failures.memory.graph_retained import MIN_GRAPHS, GraphsRetained, hook
from trueloop.sanitizer.watch import _attachment


@pytest.fixture
def reported():
    events = []
    attachment = _attachment()

    def listener(event):  # other events hold a model's output, which keeps its graph alive
        if type(event) is GraphsRetained:
            events.append(event)

    own = torch.autograd.backward
    attachment.attach(listener)
    yield events
    attachment.detach(listener)
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


def test_it_is_reported_once_when_enough_graphs_are_freed(reported):
    train(16)
    (event,) = reported
    assert event.count == MIN_GRAPHS
    assert event.update == MIN_GRAPHS
    assert event.location.source_location.path == __file__
    assert event.location.source_location.function == "train"


def test_too_few(reported):
    train(MIN_GRAPHS)
    assert not reported


@pytest.mark.parametrize("when", [0, 5, 11])
def test_any_second_backward_is_enough(reported, when):
    def again(step, loss):
        if step == when:
            leaf = loss.grad_fn.next_functions[0][0]
            torch.autograd.grad(loss, torch.autograd.graph.GradientEdge(leaf, 0))

    train(16, again)
    assert not reported


def test_a_backward_through_a_part_of_the_graph(reported):
    parts = []

    def make(model, x):
        parts[:] = [model[1](model[0](x))]
        return model[2](parts[0]).square().mean()

    train(16, lambda step, loss: parts[0].sum().backward() if step == 3 else None, make)
    assert not reported


def test_custom_autograd_functions(reported):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    train(16, make=lambda model, x: Double.apply(model(x)).square().mean())
    assert len(reported) == 1


def test_a_graph_that_is_too_large_is_not_judged(reported, monkeypatch):
    monkeypatch.setattr(hook, "MAX_NODES", 4)
    train(16)
    assert not reported


def test_graphs_still_alive_are_not_counted(reported):
    kept = []
    train(16, lambda step, loss: kept.append(loss))
    assert not reported


def test_gradients_are_the_same():
    def gradients():
        torch.manual_seed(0)
        found = []
        train(16, lambda step, loss: (loss.backward(), found.append(loss.item())))
        return found

    bare = gradients()
    attachment, listener = _attachment(), lambda event: None
    attachment.attach(listener)
    try:
        assert gradients() == bare
    finally:
        attachment.detach(listener)
