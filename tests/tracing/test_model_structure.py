"""The modules and parameters of a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.tracing import model_structure
from trueloop.tracing.model_structure import ModuleModes, parameters_and_modes


def same(found, expected) -> bool:
    return [id(each) for each in found] == [id(each) for each in expected]


class Odd(nn.Module):
    """A model with a repeated module, a module that is None, tied weights and its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.again = self.first
        self.gone = None
        self.register_module("never", None)
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.first.weight
        self.own = nn.Parameter(torch.ones(1))


def test_each_parameter_comes_once():
    model = Odd()
    assert sorted(map(id, parameters_and_modes(model)[0])) == sorted(map(id, model.parameters()))
    flat = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert same(parameters_and_modes(flat)[0], flat.parameters())


def test_a_module_within_itself_and_very_many_modules(monkeypatch):
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].whole = model
    monkeypatch.setattr(model_structure, "MAX_MODULES", 8)
    assert same(parameters_and_modes(model)[0], model[0].parameters())
    wide = nn.ModuleList(nn.Linear(1, 1) for _ in range(20))
    assert same(parameters_and_modes(wide)[0], wide.parameters())


def test_modes():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5), nn.BatchNorm1d(1))
    assert parameters_and_modes(model)[1] == ModuleModes(training=True, dropout=True, batchnorm=True)
    model[1].eval()
    assert parameters_and_modes(model)[1] == ModuleModes(training=True, dropout=False, batchnorm=True)
    model.eval()
    assert parameters_and_modes(model)[1] == ModuleModes()
    model[1].train()
    assert parameters_and_modes(model)[1] == ModuleModes(training=True, dropout=True)
    idle = nn.Sequential(nn.Dropout(0.0), nn.BatchNorm1d(1, track_running_stats=False))
    assert parameters_and_modes(idle)[1] == ModuleModes(training=True)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.*torch.jit.script:FutureWarning")
def test_torchscript_stores_its_fields_elsewhere():
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
    assert len(parameters_and_modes(model)[0]) == 2
    assert parameters_and_modes(model)[1].training
    assert not parameters_and_modes(model.eval())[1].training
