"""Several losses in one backward equal their weighted sum; gradients of each leave .grad alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trueloop.autograd.several_losses import backward, gradients
from trueloop.core.errors import InvalidConfig, InvalidData


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"body": nn.Linear(3, 4), "a": nn.Linear(4, 1), "b": nn.Linear(4, 2)}).double()


def losses(model: nn.Module) -> dict[str, Tensor]:
    hidden = model["body"](torch.ones(5, 3, dtype=torch.float64)).tanh()
    return {"a": model["a"](hidden).square().mean(), "b": model["b"](hidden).abs().mean()}


@pytest.mark.parametrize("weights", [None, {"b": 0.5, "a": 2.0}])
def test_one_backward_brings_what_the_weighted_sum_would(model: nn.Module, weights: dict[str, float] | None):
    made = losses(model)
    backward(made, weights=weights)
    ours = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    factor = weights or {"a": 1.0, "b": 1.0}
    sum(factor[name] * loss for name, loss in losses(model).items()).backward()
    torch.testing.assert_close(ours, [each.grad for each in model.parameters()])
    with pytest.raises(RuntimeError, match="second time"):
        backward(made)  # the graph is gone, as after any backward


def test_in_a_row_and_with_the_graph_kept(model: nn.Module):
    a, b = losses(model).values()
    backward([a, b], weights=[3, 0], retain_graph=True)
    kept = model["body"].weight.grad.clone()
    torch.testing.assert_close(kept, 3 * gradients([a], [model["body"].weight])["0"][0])


def test_gradients_of_each_without_accumulation(model: nn.Module):
    parameters = list(model.parameters())
    for each in parameters:
        each.grad = torch.full_like(each, 7)
    found = gradients(losses(model), parameters)
    assert all(torch.equal(each.grad, torch.full_like(each, 7)) for each in parameters)
    for name in ("a", "b"):
        model.zero_grad()
        losses(model)[name].backward()
        expected = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        torch.testing.assert_close(list(found[name]), expected)


def test_what_cannot_be_differentiated_is_named(model: nn.Module):
    made = losses(model)
    with pytest.raises(InvalidData, match="The loss b has no graph"):
        backward(made | {"b": made["b"].detach()})
    with pytest.raises(InvalidData, match=r"The loss 1 has the shape \(2,\)"):
        gradients([made["a"], torch.ones(2, requires_grad=True)], [model["body"].weight])
    with pytest.raises(InvalidData, match="There is no loss"):
        backward({})
    model["body"].bias.requires_grad_(False)
    with pytest.raises(InvalidData, match=r"Parameter 1 of shape \(4,\) requires no gradient"):
        gradients(made, [model["body"].weight, model["body"].bias])
    with pytest.raises(InvalidData, match="There is no parameter"):
        gradients(made, [])


def test_weights_are_those_of_the_losses(model: nn.Module):
    with pytest.raises(InvalidConfig, match="The weights are for a, c, but the losses are a, b"):
        backward(losses(model), weights={"a": 1.0, "c": 2.0})
    with pytest.raises(InvalidConfig, match="1 weights for 2 losses"):
        backward(losses(model), weights=[1.0])
