"""Gradient norms by layer: norms of a layer's parameters are combined, and their memory is bounded."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from trueloop.sanitizer.layer_norms import MAX_LAYERS, MAX_UPDATES, OTHER_LAYERS, LayerNormRecorder
from trueloop.sanitizer.watch import Watch
from trueloop.tracing.events import Ref

ADAM, SGD = Ref("Adam", "Adam"), Ref("SGD", "SGD")


def step(update: int, norms: dict[Ref, float], optimizer: Ref = ADAM) -> tuple[int, str, dict[Ref, float]]:
    return update, optimizer.name, norms


def named(*names: str) -> list[Ref]:
    return [Ref("Parameter", name) for name in names]


def test_parameters_of_one_layer_are_one_row():
    weight, bias, own = named("encoder.0.weight", "encoder.0.bias", "scale")
    layers = LayerNormRecorder()
    layers.add(*step(0, {weight: 3.0, bias: 4.0, own: 1.0}))
    found = layers.norms()
    assert found is not None
    assert (found.updates, found.layers, found.norms) == ((0,), ("encoder.0", "scale"), ((5.0,), (1.0,)))


def test_unstepped_layers_differ_from_nan():
    first, second = named("a.weight", "b.weight")
    layers = LayerNormRecorder()
    layers.add(*step(0, {first: 1.0}))
    layers.add(*step(1, {second: math.nan}))
    layers.add(*step(2, {first: math.inf, second: 0.0}))
    found = layers.norms()
    assert found is not None
    assert found.norms[0] == (1.0, None, math.inf)
    assert found.norms[1][0] is None
    assert math.isnan(found.norms[1][1] or 0)
    assert found.norms[1][2] == 0.0
    assert layers.newest() == (2, ["a", "b"], [math.inf, 0.0])


def test_equal_layer_names_are_distinguished_by_optimizer():
    critic, maker = named("0.weight", "0.weight")
    layers = LayerNormRecorder()
    layers.add(*step(0, {critic: 1.0}))
    layers.add(*step(1, {maker: 2.0}, SGD))
    found = layers.norms()
    assert found is not None
    assert found.layers == ("Adam: 0", "SGD: 0")


def test_a_better_name_replaces_the_first():
    parameter = Ref("Parameter", "0.weight")
    layers = LayerNormRecorder()
    layers.add(*step(0, {parameter: 1.0}))
    parameter.name = "encoder.0.weight"
    for update in range(1, 100):
        layers.add(*step(update, {parameter: 1.0}))
    found = layers.norms()
    assert found is not None
    assert found.layers == ("0", "encoder.0")


def test_memory_is_bounded():
    many = dict.fromkeys(named(*(f"{place}.weight" for place in range(MAX_LAYERS + 3))), 1.0)
    layers = LayerNormRecorder()
    for update in range(3 * MAX_UPDATES):
        layers.add(*step(update, many))
    found = layers.norms()
    assert found is not None
    assert len(found.updates) <= MAX_UPDATES
    assert (len(found.layers), found.layers[-1]) == (MAX_LAYERS, OTHER_LAYERS)
    assert found.norms[-1][0] == pytest.approx(2.0), "four layers of norm 1"


def test_a_run_records_norms_by_layer_names():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    seen: list[float] = []
    with Watch(()) as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            layer = model[0]
            assert isinstance(layer, nn.Linear)
            assert layer.weight.grad is not None
            assert layer.bias.grad is not None
            seen.append(math.hypot(float(layer.weight.grad.norm()), float(layer.bias.grad.norm())))
            optimizer.step()
    found = watch.report().layer_gradient_norms
    assert found is not None
    assert found.layers == ("0", "2")
    assert found.updates == tuple(range(5))
    assert found.norms[0] == pytest.approx(seen)
