"""The first thing that was not finite is named: batch, module and operation."""

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


class Risky(nn.Module):
    """Takes the logarithm of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.log(x * self.scale)


class Root(nn.Module):
    """Takes the square root of a quantity that may be 0: the gradient is infinite there, the value is not."""

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


def test_a_batch_is_named_with_field_and_samples():
    y = torch.zeros(4)
    y[[1, 3]] = math.inf
    found = locate(replay(nn.Linear(2, 1)), window((torch.ones(4, 2), torch.ones(4)), (torch.ones(4, 2), y)))
    assert (found.stage, found.micro_batch, found.where, found.indices) == ("batch", 1, "1", (11, 13))


def test_a_field_of_a_mapping_is_named_by_its_path():
    batch = {"image": torch.ones(4, 2), "meta": {"depth": torch.full((4,), math.nan)}}
    assert locate(replay(nn.Linear(2, 1)), window(batch)).where == "meta.depth"


def test_the_first_module_and_operation_of_the_forward_pass():
    model = nn.Sequential(nn.Linear(4, 4), Risky(), nn.LayerNorm(4), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
    found = locate(replay(model), window((torch.ones(4, 4), torch.ones(4))))
    assert (found.stage, found.where, found.operation) == ("forward", "1", "aten.log")
    assert found.indices == (0, 1, 2, 3)
    assert "aten.log in module '1'" in str(found)


def test_an_operation_outside_any_child_belongs_to_the_models_own_code():
    found = locate(
        replay(nn.Linear(4, 4), lambda model, batch: (model(batch[0]) * 0 / 0).sum()), window((torch.ones(4, 4),))
    )
    assert (found.stage, found.where, found.operation) == ("forward", "", "aten.div")


def test_a_gradient_that_is_not_finite_though_the_loss_is():
    batch = (torch.tensor([[0.0, 1.0, 2.0, 3.0]]),)
    found = locate(replay(nn.Sequential(Root(), nn.Identity())), window(batch))
    assert (found.stage, found.operation) == ("backward", "MulBackward0")


def test_an_infinite_gradient_is_named_by_its_parameter():
    found = locate(replay(nn.Sequential(Risky()), lambda model, b: (model(b[0]) * 1e30).sum() * 1e30),
                   window((torch.full((4, 4), 1.0),)))  # fmt: skip
    assert (found.stage, found.where, found.operation) == ("backward", "0.scale", "gradient")


def test_masks_of_minus_infinity_are_not_blamed():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.risky = Risky()

        def forward(self, x):
            scores = self.layer(x) @ x.T
            mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
            attention = scores.masked_fill(mask, -math.inf).softmax(-1)
            return self.risky(attention @ x - 1000)

    found = locate(replay(Attention()), window((torch.rand(4, 4),)))
    assert (found.where, found.operation) == ("risky", "aten.log")


def test_a_window_that_is_finite_the_second_time_is_said_to_be():
    found = locate(replay(nn.Linear(4, 1)), window((torch.ones(4, 4),)))
    assert found.stage == "unknown"
    assert "not reproduced" in str(found)


@pytest.mark.parametrize("training", [True, False])
def test_looking_changes_nothing(training):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Risky()).train(training)
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


def test_a_sharded_model_runs_all_of_its_window_and_no_backward():
    """Stopping early, or an error in the middle of backward, would leave the other processes waiting."""
    model, calls = Risky(), []
    model.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    together = replace(replay(model), collective_forward=True)
    bad, good = (torch.tensor([1.0, -1.0, 2.0, 3.0]),), (torch.ones(4),)
    found = locate(together, window(bad, good, good))
    assert (found.stage, found.micro_batch, found.operation) == ("forward", 0, "aten.log")
    assert calls == [False] * 3

    nan = (torch.full((4,), math.nan),)
    assert locate(together, window(good, nan)).stage == "batch"
    assert len(calls) == 5

    found = locate(replace(replay(Root()), collective_forward=True), window((torch.zeros(4),)))
    assert (found.stage, found.operation) == ("unknown", "backward")
    assert "backward pass is not run again" in str(found)
