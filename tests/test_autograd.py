"""`trueloop.autograd`: its names are documented and sorted, and freezing works with the trainer's optimizer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trueloop
from trueloop.training.optimizers.adamw import LeanAdamW
from trueloop.training.optimizers.parameter_groups import build_optimizer


@pytest.mark.parametrize("name", trueloop.autograd.__all__)
def test_what_is_offered_is_there_and_documented(name: str):
    assert getattr(trueloop.autograd, name).__doc__


def test_the_trainers_has_user_optimizer_follows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    optimizer = build_optimizer(model, trueloop.OptimConfig())
    assert isinstance(optimizer, LeanAdamW)

    def changed_parameters() -> set[str]:
        before = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}

    names = set(model.state_dict())
    assert changed_parameters() == names
    trueloop.autograd.freeze(model, "0.*", optimizer=optimizer)
    assert changed_parameters() == names - {"0.weight", "0.bias"}
    trueloop.autograd.freeze(model, "2.*", optimizer=optimizer)
    trueloop.autograd.thaw(model, "0.*", optimizer=optimizer)  # the same number of parameters as before, but others
    assert changed_parameters() == names - {"2.weight", "2.bias"}
    assert optimizer.state[model[0].weight]["step"] == 1


def test_the_names_are_in_order():
    assert list(trueloop.autograd.__all__) == sorted(trueloop.autograd.__all__)
