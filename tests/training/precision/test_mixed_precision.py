"""Autocast and the loss scale, against torch.amp.GradScaler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.training.config import OptimConfig, TrainConfig
from trueloop.training.loop import train_epoch
from trueloop.training.precision.mixed_precision import LossScale, autocast

CPU = torch.device("cpu")


def test_autocast_decides_the_dtype_of_matrix_products():
    a = torch.ones(2, 2)
    for precision, dtype in {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        context = autocast(precision, CPU)
        for _ in range(2):  # one context is entered for every micro-batch
            with context:
                assert (a @ a).dtype == dtype


@pytest.mark.parametrize("begin", [2.0**16, 2.0**127])  # from which twice as much is inf
@pytest.mark.parametrize("pattern", ["111111", "000100", "100000001", "0101"])
def test_the_scale_changes_like_that_of_gradscaler(pattern, begin):
    interval = 3
    actual = LossScale(CPU, enabled=True, growth_interval=interval)
    actual.scale.fill_(begin)
    expected = torch.amp.GradScaler("cpu", growth_interval=interval, init_scale=begin)
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for skipped in pattern:
        expected.scale(parameter.sum()).backward()
        if skipped == "1":
            parameter.grad.fill_(float("inf"))
        expected.step(optimizer)
        expected.update()
        optimizer.zero_grad()
        actual.update(float(skipped))
        assert float(actual.scale) == expected.get_scale()


def test_the_scale_is_restored():
    actual = LossScale(CPU, enabled=True, growth_interval=3)
    for skipped in (1.0, 0.0, 0.0):
        actual.update(skipped)
    other = LossScale(CPU, enabled=True, growth_interval=3)
    other.load_state_dict(actual.state_dict())
    for scale in (actual, other):
        scale.update(0.0)
    assert float(actual.scale) == float(other.scale) == 65536.0


def test_scaling_and_unscaling_cancel_exactly():
    scale = LossScale(CPU, enabled=True)
    weight = torch.tensor([1.5], requires_grad=True)
    scale.begin_window(torch.tensor(300))
    scale.scale_root((weight * 3.0).sum()).backward()
    assert float(weight.grad / scale.gradient_divisor(torch.tensor(300))) == pytest.approx(3.0 / 300, rel=1e-7)


def test_without_float16_nothing_is_scaled():
    scale = LossScale(CPU, enabled=False)
    root = torch.ones((), requires_grad=True)
    scale.begin_window(7)
    scale.update(1.0)
    assert scale.scale_root(root) is root
    assert scale.gradient_divisor(7) == 7
    assert not scale.is_calibrating


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_as_well_as_single_precision(windowed, build, precision):
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = (x @ torch.randn(6, 3)).argmax(1)
    losses = {}
    for mode in ("off", precision):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
        config = TrainConfig(precision=mode, effective_batch=64, optim=OptimConfig(lr=0.01))
        parts = build(model, nn.CrossEntropyLoss(), config, updates_per_epoch=40)
        source = windowed(x, y, effective=64, micro=32)
        for epoch in range(10):
            results = list(train_epoch(parts, source.epoch(epoch, 0), update=epoch * 4))
        losses[mode] = float(results[-1].loss)
        assert all(p.dtype == torch.float32 for p in model.parameters())
    assert losses[precision] == pytest.approx(losses["off"], rel=0.1)
