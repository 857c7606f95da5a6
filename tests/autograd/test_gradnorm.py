"""GradNorm on losses whose gradients are known: the step by hand, the fixed point, saving, and refusals."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from trueloop.autograd.gradnorm import GradNorm
from trueloop.core.errors import CheckpointError, InvalidConfig, InvalidData


def losses_with_slopes(point: Tensor, *factors: float) -> list[Tensor]:
    """Losses of value 1 with gradients of these lengths."""
    return [1 + factor * (point[0] - point[0].detach()) for factor in factors]


@pytest.fixture
def point() -> Tensor:
    return torch.zeros(2, dtype=torch.float64, requires_grad=True)


def test_the_first_step_computed_by_hand(point: Tensor):
    balance = GradNorm(alpha=1.5, rate=0.1).balance(losses_with_slopes(point, 1.0, 3.0), [point])
    assert balance.norms == {"0": 1.0, "1": 3.0}
    assert balance.targets == {"0": 2.0, "1": 2.0}, "the mean, as both losses are where they began"
    # 1 + 0.1 * 1 and 1 - 0.1 * 3, scaled to sum to 2
    assert balance.weights == {"0": pytest.approx(1.1 * 2 / 1.8), "1": pytest.approx(0.7 * 2 / 1.8)}
    assert point.grad is None


def test_weights_converge_to_equal_weighted_norms(point: Tensor):
    gradnorm = GradNorm(rate=0.001)
    for _ in range(2000):
        balance = gradnorm.balance(losses_with_slopes(point, 1.0, 3.0, 6.0), [point])
    expected = [2.0, 2.0 / 3, 1.0 / 3]  # by 1/1 : 1/3 : 1/6, summing to 3
    assert list(balance.weights.values()) == pytest.approx(expected, abs=0.02)
    assert sum(balance.weights.values()) == pytest.approx(3)


def test_a_loss_that_fell_less_gets_a_larger_gradient(point: Tensor):
    gradnorm = GradNorm(alpha=1.0, rate=0.01)
    gradnorm.balance({"slow": losses_with_slopes(point, 1.0)[0], "fast": losses_with_slopes(point, 1.0)[0]}, [point])
    next_balance = {"slow": losses_with_slopes(point, 1.0)[0] * 0.9, "fast": losses_with_slopes(point, 1.0)[0] * 0.3}
    balance = gradnorm.balance(next_balance, [point])
    mean = (0.9 + 0.3) / 2
    assert balance.targets == {"slow": pytest.approx(mean * 0.9 / 0.6), "fast": pytest.approx(mean * 0.3 / 0.6)}


def test_weights_stay_above_zero_and_the_graph_is_kept(point: Tensor):
    losses = losses_with_slopes(point, 1.0, 1e4)
    balance = GradNorm(rate=1.0).balance(losses, [point])
    assert min(balance.weights.values()) > 0
    sum(losses).backward()
    assert point.grad is not None


def test_a_resumed_run_continues_with_the_same_weights(point: Tensor):
    gradnorm = GradNorm()
    gradnorm.balance(losses_with_slopes(point, 1.0, 3.0), [point])
    resumed = GradNorm()
    resumed.load_state_dict(json.loads(json.dumps(gradnorm.state_dict())))
    halved_losses = [loss * 0.5 for loss in losses_with_slopes(point, 2.0, 3.0)]
    assert resumed.balance(halved_losses, [point]) == gradnorm.balance(halved_losses, [point])
    with pytest.raises(CheckpointError, match="not the state of a GradNorm"):
        resumed.load_state_dict({"weights": {"a": 1.0}})


def test_losses_that_cannot_be_balanced_are_refused(point: Tensor):
    gradnorm = GradNorm()
    gradnorm.balance(losses_with_slopes(point, 1.0, 3.0), [point])
    with pytest.raises(InvalidData, match="The losses are 0, but in the first call they were 0, 1"):
        gradnorm.balance(losses_with_slopes(point, 1.0), [point])
    with pytest.raises(InvalidData, match=r"not above 0: \{'0': -1.0\}"):
        GradNorm().balance([loss - 2 for loss in losses_with_slopes(point, 1.0)], [point])
    with pytest.raises(InvalidData, match="norms is 0.0"):
        GradNorm().balance(losses_with_slopes(point, 0.0, 0.0), [point])
    with pytest.raises(InvalidConfig, match="alpha is -1"):
        GradNorm(alpha=-1)
    with pytest.raises(InvalidConfig, match="rate is 0"):
        GradNorm(rate=0)
