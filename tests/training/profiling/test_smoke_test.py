"""Training on five batches twice: the loss has to fall."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidModel
from trueloop.training.config import OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.profiling.smoke_test import run_smoke_test

X = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def parts(build, lr: float):
    torch.manual_seed(0)
    config = TrainConfig(optim=OptimConfig(lr=lr), schedule=ScheduleConfig(name="constant"))
    return build(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), nn.CrossEntropyLoss(), config)


def test_a_model_that_learns_passes(windowed, build):
    result = run_smoke_test(parts(build, 0.01), windowed(X, Y, effective=8, micro=3))
    assert len(result.first_pass) == len(result.second_pass) == 5
    assert 0 < result.loss_decrease < 1


def test_a_short_epoch_is_enough(windowed, build):
    assert len(run_smoke_test(parts(build, 0.01), windowed(X[:16], Y[:16], effective=8)).first_pass) == 2


def test_a_model_that_does_not_learn_is_refused_with_its_losses(windowed, build):
    with pytest.raises(InvalidModel, match="does not fall: 0.5353"):
        run_smoke_test(parts(build, 1e-12), windowed(X, Y, effective=8))


def test_a_loss_that_is_not_finite_is_refused(windowed, build):
    with pytest.raises(InvalidModel, match="nan"):
        run_smoke_test(parts(build, 0.01), windowed(X * float("nan"), Y, effective=8))
