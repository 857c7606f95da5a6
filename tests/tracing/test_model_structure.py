"""What a model is made of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.tracing import model_structure
from trueloop.tracing.model_structure import Modes, parts_of


def same(found, expected) -> bool:
    return [id(each) for each in found] == [id(each) for each in expected]


class Odd(nn.Module):
    """One module twice, one that was taken out, a parameter that is none, two that are tied."""

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
    assert sorted(map(id, parts_of(model)[0])) == sorted(map(id, model.parameters()))
    flat = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert same(parts_of(flat)[0], flat.parameters())


def test_a_module_within_itself_and_one_of_very_many(monkeypatch):
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].whole = model
    monkeypatch.setattr(model_structure, "MOST_MODULES", 8)
    assert same(parts_of(model)[0], model[0].parameters())
    wide = nn.ModuleList(nn.Linear(1, 1) for _ in range(20))
    assert same(parts_of(wide)[0], wide.parameters())


def test_modes():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5), nn.BatchNorm1d(1))
    assert parts_of(model)[1] == Modes(training=True, dropout=True, normalising=True)
    model[1].eval()
    assert parts_of(model)[1] == Modes(training=True, dropout=False, normalising=True)
    model.eval()
    assert parts_of(model)[1] == Modes()
    model[1].train()
    assert parts_of(model)[1] == Modes(training=True, dropout=True)
    idle = nn.Sequential(nn.Dropout(0.0), nn.BatchNorm1d(1, track_running_stats=False))
    assert parts_of(idle)[1] == Modes(training=True)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.*torch.jit.script:FutureWarning")
def test_a_compiled_script_keeps_its_fields_elsewhere():
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
    assert len(parts_of(model)[0]) == 2
    assert parts_of(model)[1].training
    assert not parts_of(model.eval())[1].training
