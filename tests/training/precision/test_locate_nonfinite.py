"""The first non-finite value is located: batch, module and operation."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from trueloop.core.protocols import MicroBatch
from trueloop.training.objective import as_objective
from trueloop.training.precision.locate_nonfinite import Replay, locate


class Logarithm(nn.Module):
    """Takes the logarithm of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.log(x * self.scale)


class SquareRoot(nn.Module):
    """Takes the square root of a number that may be 0, where the gradient is infinite and the value is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (x * self.weight).sqrt()


def replay(model, objective=lambda model, batch: model(batch[0]).mean()) -> Replay:
    return Replay(
        model=model, objective=as_objective(objective), device=torch.device("cpu"), autocast=nullcontext, generator=None
    )


def window(*batches):
    return [MicroBatch(batch, False, tuple(range(n * 10, n * 10 + 4))) for n, batch in enumerate(batches)]


def test_a_nonfinite_batch_is_reported_with_field_and_samples():
    y = torch.zeros(4)
    y[[1, 3]] = math.inf
    result = locate(replay(nn.Linear(2, 1)), window((torch.ones(4, 2), torch.ones(4)), (torch.ones(4, 2), y)))
    assert (result.stage, result.micro_batch, result.where, result.indices) == ("batch", 1, "1", (11, 13))


def test_a_field_of_a_mapping_is_reported_by_its_path():
    batch = {"image": torch.ones(4, 2), "meta": {"depth": torch.full((4,), math.nan)}}
    assert locate(replay(nn.Linear(2, 1)), window(batch)).where == "meta.depth"


def test_the_first_module_and_operation_of_the_forward_pass():
    model = nn.Sequential(nn.Linear(4, 4), Logarithm(), nn.LayerNorm(4), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
    result = locate(replay(model), window((torch.ones(4, 4), torch.ones(4))))
    assert (result.stage, result.where, result.operation) == ("forward", "1", "aten.log")
    assert result.indices == (0, 1, 2, 3)
    assert "aten.log in module '1'" in str(result)


def test_an_operation_outside_of_submodules_belongs_to_the_model():
    result = locate(
        replay(nn.Linear(4, 4), lambda model, batch: (model(batch[0]) * 0 / 0).sum()), window((torch.ones(4, 4),))
    )
    assert (result.stage, result.where, result.operation) == ("forward", "", "aten.div")


def test_a_nonfinite_gradient_of_a_finite_loss():
    batch = (torch.tensor([[0.0, 1.0, 2.0, 3.0]]),)
    result = locate(replay(nn.Sequential(SquareRoot(), nn.Identity())), window(batch))
    assert (result.stage, result.operation) == ("backward", "MulBackward0")


def test_an_infinite_gradient_is_reported_by_its_parameter():
    result = locate(replay(nn.Sequential(Logarithm()), lambda model, b: (model(b[0]) * 1e30).sum() * 1e30),
                   window((torch.full((4, 4), 1.0),)))  # fmt: skip
    assert (result.stage, result.where, result.operation) == ("backward", "0.scale", "gradient")


def test_masks_of_minus_infinity_are_not_reported():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.risky = Logarithm()

        def forward(self, x):
            scores = self.layer(x) @ x.T
            mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
            attention = scores.masked_fill(mask, -math.inf).softmax(-1)
            return self.risky(attention @ x - 1000)

    result = locate(replay(Attention()), window((torch.rand(4, 4),)))
    assert (result.where, result.operation) == ("risky", "aten.log")


def test_a_window_that_is_finite_the_second_time():
    result = locate(replay(nn.Linear(4, 1)), window((torch.ones(4, 4),)))
    assert result.stage == "unknown"
    assert "not reproduced" in str(result)


@pytest.mark.parametrize("training", [True, False])
def test_locating_changes_nothing(training):
    torch.manual_seed(0)  # dropout may leave only positive numbers, whose logarithm is finite
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Logarithm()).train(training)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = window((torch.randn(4, 4),))
    generator = torch.get_rng_state()
    assert locate(replay(model), batches).stage == "forward"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    assert torch.equal(generator, torch.get_rng_state())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_sharded_model_runs_its_full_window_without_backward():
    """Stopping early, or an error in the middle of backward, would leave the other processes waiting."""
    model, calls = Logarithm(), []
    model.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    together = replace(replay(model), collective_forward=True)
    bad, good = (torch.tensor([1.0, -1.0, 2.0, 3.0]),), (torch.ones(4),)
    result = locate(together, window(bad, good, good))
    assert (result.stage, result.micro_batch, result.operation) == ("forward", 0, "aten.log")
    assert calls == [False] * 3

    nan = (torch.full((4,), math.nan),)
    assert locate(together, window(good, nan)).stage == "batch"
    assert len(calls) == 5

    result = locate(replace(replay(SquareRoot()), collective_forward=True), window((torch.zeros(4),)))
    assert (result.stage, result.operation) == ("unknown", "backward")
    assert "backward pass is not run again" in str(result)
