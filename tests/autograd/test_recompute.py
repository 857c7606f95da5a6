"""Blocks are computed again as far as asked: the graph keeps that much less, and gradients are bitwise the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from trueloop import autograd
from trueloop.autograd.recompute import recompute
from trueloop.core.errors import InvalidConfig, InvalidModel


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).tanh().exp()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(*(Block() for _ in range(4))), nn.Linear(8, 1))


def test_half_is_spared_and_the_gradients_are_the_same(model: nn.Module):
    x = torch.randn(16, 8)
    twin = copy.deepcopy(model)
    before = autograd.inspect(model(x).square().mean(), model)
    made = recompute(model, lambda: model(x).square().mean(), spare_b=2 * 16 * 8 * 4)
    assert 1 <= len(made.blocks) < 4
    assert made.spares_b >= 2 * 16 * 8 * 4
    assert made.costs_s > 0
    loss = model(x).square().mean()
    after = autograd.inspect(loss, model)
    assert after.hooked > 0
    assert after.alone_b < before.alone_b
    loss.backward()
    twin(x).square().mean().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_without_a_bound_all_are(model: nn.Module):
    x = torch.randn(16, 8)
    made = recompute(model, lambda: model(x).square().mean())
    assert made.blocks == ("0.0", "0.1", "0.2", "0.3")
    assert len(made.costs) == 4


def test_what_cannot_be_is_said(model: nn.Module):
    x = torch.randn(16, 8)
    with pytest.raises(InvalidConfig, match="All 4 blocks together save"):
        recompute(model, lambda: model(x).sum(), spare_b=2**40)
    assert autograd.inspect(model(x).sum(), model).hooked == 0, "nothing was changed"
    with pytest.raises(InvalidModel, match="eval mode"):
        recompute(model.eval(), lambda: model(x).sum())
    with pytest.raises(InvalidModel, match="no repeated blocks"):
        recompute(nn.Linear(1, 1), lambda: None)
