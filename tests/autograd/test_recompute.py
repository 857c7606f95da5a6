"""Recomputed blocks: the graph keeps less memory, and gradients are bitwise the same."""

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


def test_half_of_the_memory_is_saved_with_the_same_gradients(model: nn.Module):
    x = torch.randn(16, 8)
    twin = copy.deepcopy(model)
    before = autograd.inspect(model(x).square().mean(), model)
    recomputed = recompute(model, lambda: model(x).square().mean(), save_b=2 * 16 * 8 * 4)
    assert 1 <= len(recomputed.blocks) < 4
    assert recomputed.saves_b >= 2 * 16 * 8 * 4
    assert recomputed.costs_s > 0
    loss = model(x).square().mean()
    after = autograd.inspect(loss, model)
    assert after.hooked > 0
    assert after.graph_only_b < before.graph_only_b
    loss.backward()
    twin(x).square().mean().backward()
    for gradients, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(gradients.grad, expected.grad)


def test_by_default_all_blocks_are_recomputed(model: nn.Module):
    x = torch.randn(16, 8)
    recomputed = recompute(model, lambda: model(x).square().mean())
    assert recomputed.blocks == ("0.0", "0.1", "0.2", "0.3")
    assert len(recomputed.costs) == 4


def test_models_that_cannot_be_recomputed_are_refused(model: nn.Module):
    x = torch.randn(16, 8)
    with pytest.raises(InvalidConfig, match="All 4 blocks together save"):
        recompute(model, lambda: model(x).sum(), save_b=2**40)
    assert autograd.inspect(model(x).sum(), model).hooked == 0, "nothing was changed"
    with pytest.raises(InvalidModel, match="eval mode"):
        recompute(model.eval(), lambda: model(x).sum())
    with pytest.raises(InvalidModel, match="no repeated blocks"):
        recompute(nn.Linear(1, 1), lambda: None)
