"""One backward pass for several losses equals that of their weighted sum; `gradients` does not change .grad."""

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
def test_one_backward_pass_equals_that_of_the_weighted_sum(model: nn.Module, weights: dict[str, float] | None):
    created = losses(model)
    backward(created, weights=weights)
    actual = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    factor = weights or {"a": 1.0, "b": 1.0}
    sum(factor[name] * loss for name, loss in losses(model).items()).backward()
    torch.testing.assert_close(actual, [each.grad for each in model.parameters()])
    with pytest.raises(RuntimeError, match="second time"):
        backward(created)  # the graph is gone, as after any backward


def test_losses_in_a_sequence_and_retain_graph(model: nn.Module):
    a, b = losses(model).values()
    backward([a, b], weights=[3, 0], retain_graph=True)
    saved = model["body"].weight.grad.clone()
    torch.testing.assert_close(saved, 3 * gradients([a], [model["body"].weight])["0"][0])


def test_gradients_of_each_loss_do_not_change_grad(model: nn.Module):
    parameters = list(model.parameters())
    for each in parameters:
        each.grad = torch.full_like(each, 7)
    result = gradients(losses(model), parameters)
    assert all(torch.equal(each.grad, torch.full_like(each, 7)) for each in parameters)
    for name in ("a", "b"):
        model.zero_grad()
        losses(model)[name].backward()
        expected = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        torch.testing.assert_close(list(result[name]), expected)


def test_losses_that_cannot_be_differentiated_are_refused(model: nn.Module):
    created = losses(model)
    with pytest.raises(InvalidData, match="The loss b has no graph"):
        backward(created | {"b": created["b"].detach()})
    with pytest.raises(InvalidData, match=r"The loss 1 has the shape \(2,\)"):
        gradients([created["a"], torch.ones(2, requires_grad=True)], [model["body"].weight])
    with pytest.raises(InvalidData, match="There is no loss"):
        backward({})
    model["body"].bias.requires_grad_(False)
    with pytest.raises(InvalidData, match=r"Parameter 1 of shape \(4,\) requires no gradient"):
        gradients(created, [model["body"].weight, model["body"].bias])
    with pytest.raises(InvalidData, match="There is no parameter"):
        gradients(created, [])


def test_weights_must_match_the_losses(model: nn.Module):
    with pytest.raises(InvalidConfig, match="The weights are for a, c, but the losses are a, b"):
        backward(losses(model), weights={"a": 1.0, "c": 2.0})
    with pytest.raises(InvalidConfig, match="1 weights for 2 losses"):
        backward(losses(model), weights=[1.0])
