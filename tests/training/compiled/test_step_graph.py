"""One update as a function takes the steps of the loop; tested without compiling, which only changes rounding."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from trueloop.training import loop
from trueloop.training.compiled.compiled_loop import train_epoch
from trueloop.training.config import GuardConfig, OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.objective import Loss

pytestmark = pytest.mark.compiles_updates
G = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, dtype=torch.float64, generator=G)
Y = torch.randint(0, 3, (40,), generator=G)


@pytest.fixture(autouse=True)
def _without_compiling(monkeypatch):
    """Run step functions without compiling them."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    return nn.Sequential(*layers).double()


def two_terms(model, batch):
    x, y = batch
    output = model(x)
    known = y != 2
    return [
        Loss(sum=F.cross_entropy(output, y, reduction="sum"), count=len(y), weight=0.7, name="class"),
        Loss(sum=(output[:, 0].square() * known).sum(), count=known.sum(), weight=2.0, name="size"),
    ]


OBJECTIVES = {
    "mean": nn.CrossEntropyLoss(),
    "weighted, some ignored": nn.CrossEntropyLoss(
        weight=torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64), ignore_index=1
    ),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "a user's mean": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    "sum and count": lambda model, batch: (F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), 17),
    "two terms": two_terms,
}


def trained(build, windowed, objective, *, whole: bool, x=X, model=network, given=None, **settings):
    """Train two epochs in windows of 8; return the rows, and all tensors that training changes."""
    made = model()
    torch.manual_seed(1)
    config = TrainConfig(effective_batch=8, epochs=2, compile=whole, **settings)
    parts = build(made, objective, config, updates_per_epoch=5, **(given or {}))
    rows = []
    for epoch in range(2):
        for result in (train_epoch if whole else loop.train_epoch)(
            parts, windowed(x, Y, effective=8).epoch(epoch), update=len(rows)
        ):
            outcome = result.outcome
            rows.append([float(n) for n in (result.loss, outcome.norm, outcome.skipped, result.divisor, *result.rates)])
    if whole:
        assert not parts.compiled_step.disabled, parts.compiled_step.drain_notices()
        assert [results.kind for results in parts.compiled_step.drain_notices()] == ["compiled"]
    state = [*parts.model.state_dict().values()]
    for moments in parts.optimizer.state.values():
        state += moments.values()
    return torch.tensor(rows, dtype=torch.float64), [each.double() for each in state]


def assert_same(build, windowed, objective, **settings):
    rows, state = trained(build, windowed, objective, whole=False, **settings)
    own_rows, own_state = trained(build, windowed, objective, whole=True, **settings)
    torch.testing.assert_close(own_rows, rows, rtol=1e-12, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(own_state, state, rtol=1e-12, atol=1e-12, equal_nan=True)
    return rows, state


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_update_equals_that_of_the_loop(build, windowed, objective):
    assert_same(build, windowed, OBJECTIVES[objective])


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "rmsprop", "adagrad"])
def test_the_update_equals_that_of_the_loop_for_every_optimizer(build, windowed, name):
    assert_same(build, windowed, nn.CrossEntropyLoss(), optim=OptimConfig(name=name, lr=0.05), clip=0.1)


def test_schedules_that_change_momentum_and_custom_schedulers(build, windowed):
    moving = ScheduleConfig(name="onecycle")
    assert_same(build, windowed, nn.CrossEntropyLoss(), optim=OptimConfig(name="sgd", lr=0.1), schedule=moving)
    rows, _ = assert_same(build, windowed, nn.CrossEntropyLoss(), given={"scheduler": partial(StepLR, step_size=2)})
    assert len(rows[:, -1].unique()) == 5


@pytest.mark.parametrize("first", [True, False])
def test_an_empty_group_is_skipped(build, windowed, first):
    def grouped(parameters):
        groups = [{"params": [], "weight_decay": 0.0}, {"params": list(parameters)}]
        return torch.optim.AdamW(groups if first else groups[::-1], lr=0.05)

    assert_same(build, windowed, nn.CrossEntropyLoss(), given={"optimizer": grouped})


def test_tied_and_frozen_weights(build, windowed):
    def tied():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        layers[2].weight = layers[0].weight
        return layers

    assert_same(build, windowed, nn.CrossEntropyLoss(), model=tied, freeze=("4.bias",))


def test_averaged_weights_and_no_clipping(build, windowed):
    assert_same(build, windowed, nn.CrossEntropyLoss(), ema=0.9, clip=None)


@pytest.mark.parametrize("skip_nonfinite", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_gradients_are_applied_only_without_the_guard(build, windowed, skip_nonfinite, bad):
    x = X.clone()
    x[20, 3] = bad  # in the third window
    rows, state = assert_same(build, windowed, nn.CrossEntropyLoss(), x=x, guard=GuardConfig(enabled=skip_nonfinite))
    assert bool(rows[2, 2]) == skip_nonfinite
    assert all(each.isfinite().all() for each in state) == skip_nonfinite


def test_a_window_with_count_zero_changes_nothing(build, windowed, monkeypatch):
    monkeypatch.setitem(globals(), "Y", torch.where(torch.arange(40) // 8 == 3, 1, Y))
    rows, _ = assert_same(build, windowed, OBJECTIVES["weighted, some ignored"])
    assert rows[3, 2] == 1
    assert rows[3, 3] == 0


def test_several_terms_with_count_zero_change_nothing(build, windowed, monkeypatch):
    monkeypatch.setitem(globals(), "Y", torch.where(torch.arange(40) // 8 == 3, 2, Y))
    rows, _ = assert_same(build, windowed, lambda model, batch: [two_terms(model, batch)[1]] * 2)
    assert rows[3, 2] == 1
    assert rows[3, 0].isnan()
