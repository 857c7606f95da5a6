"""Norms by layer for the journal: their total is the norm of the gradient before clipping."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from trueloop.training.profiling import layer_norms as module
from trueloop.training.profiling.layer_norms import LayerNorms


@pytest.fixture(autouse=True)
def always_due(monkeypatch):
    monkeypatch.setattr(module, "MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "MIN_COST_RATIO", 0)
    monkeypatch.setattr(module, "READINGS_PER_AGE", math.inf)


@pytest.fixture
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net(torch.randn(5, 3)).square().sum().backward()
    return net


def layer_norm(layer) -> float:
    return math.hypot(float(layer.weight.grad.norm()), float(layer.bias.grad.norm()))


def test_each_layer_has_its_norm(model):
    full = math.hypot(layer_norm(model[0]), layer_norm(model[2]))
    norms = LayerNorms(model).read_if_due(full)
    assert norms == pytest.approx({"0": layer_norm(model[0]), "2": layer_norm(model[2])})


def test_clipping_and_division_do_not_change_the_norms(model):
    full = math.hypot(layer_norm(model[0]), layer_norm(model[2])) / 5
    expected = {"0": layer_norm(model[0]) / 5, "2": layer_norm(model[2]) / 5}
    for parameter in model.parameters():  # clipped, after the division by the window's count
        parameter.grad /= 40
    assert LayerNorms(model).read_if_due(full) == pytest.approx(expected)


def test_a_nonfinite_layer_does_not_change_the_others(model):
    norms = LayerNorms(model)
    full = math.hypot(layer_norm(model[0]), layer_norm(model[2])) / 2
    norms.read_if_due(full)
    model[0].weight.grad[0, 0] = math.nan
    results = norms.read_if_due(math.nan)
    assert results is not None
    assert math.isnan(results["0"])
    assert results["2"] == pytest.approx(layer_norm(model[2]) / 2)


def test_frozen_layers_and_those_without_a_gradient_are_left_out(model):
    model[0].requires_grad_(False)
    assert list(LayerNorms(model).read_if_due(1.0) or ()) == ["2"]
    model.zero_grad()
    assert LayerNorms(model).read_if_due(1.0) is None


def test_the_number_of_layers_is_limited(monkeypatch, model):
    monkeypatch.setattr(module, "MAX_LAYERS", 1)
    assert list(LayerNorms(model).read_if_due(1.0) or ()) == ["0"]


def test_norms_are_not_read_before_they_are_due(monkeypatch, model):
    monkeypatch.setattr(module, "MIN_INTERVAL_S", 3600.0)
    norms = LayerNorms(model)
    assert norms.read_if_due(1.0)
    monkeypatch.setattr(norms, "_read", lambda: pytest.fail("it was read again"))
    assert norms.read_if_due(1.0) is None


def test_sharded_gradients_are_not_read(model):
    class Shard(torch.Tensor):
        pass

    model[0].weight.grad = model[0].weight.grad.as_subclass(Shard)
    assert LayerNorms(model).read_if_due(1.0) is None


def test_sparse_gradients_are_not_read(model):
    model[0].weight.grad = model[0].weight.grad.to_sparse()
    assert LayerNorms(model).read_if_due(1.0) is None
