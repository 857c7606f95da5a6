"""What is told of clipping, and that torch is as it was afterwards."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from trueloop.sanitizer.watch import _attachment
from trueloop.tracing.events import GradientsClipped, GradientsUnscaled, LossScaled, StepSkipped


@pytest.fixture
def told():
    events = []
    attachment, hear = _attachment(), events.append
    attachment.attach(hear)
    yield events
    attachment.detach(hear)
    assert not attachment.stream.problems


def of(events, kind):
    return [event for event in events if type(event) is kind]


class Setup:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.x, self.y = torch.randn(8, 4), torch.randn(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self):
        return nn.functional.mse_loss(self.model(self.x), self.y)

    def update(self):
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


def test_a_name_imported_before_is_traced_and_restored(told):
    own = clip_grad_norm_
    setup = Setup()
    setup.update()
    setup.optimizer.zero_grad()
    setup.loss().backward()
    norm = own(setup.model.parameters(), 0.5)
    clip_grad_value_(setup.model.weight, clip_value=0.1)
    first, second = of(told, GradientsClipped)
    assert (first.kind, first.limit, first.measured, first.only_measured) == (
        "norm",
        0.5,
        pytest.approx(float(norm)),
        False,
    )
    assert len(first.parameters) == 2
    assert not first.already_used
    assert not first.scaled
    assert (second.kind, second.limit, second.measured, len(second.parameters)) == ("value", 0.1, None, 1)
    assert first.location.source_location.path == __file__
    assert own is nn.utils.clip_grad_norm_


def test_the_result_is_the_same_as_without():
    def clipped():
        setup = Setup()
        setup.loss().backward()
        norm = clip_grad_norm_((p for p in setup.model.parameters()), 0.1, norm_type=1.0, foreach=False)
        clip_grad_value_(setup.model.parameters(), 0.01, foreach=False)
        return norm, *(p.grad.clone() for p in setup.model.parameters())

    bare = clipped()
    attachment, hear = _attachment(), [].append
    attachment.attach(hear)
    try:
        watched = clipped()
    finally:
        attachment.detach(hear)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(bare, clipped(), strict=True))


def test_a_used_gradient_counts_as_used_until_added_to(told):
    setup = Setup()
    setup.update()
    setup.update()
    clip_grad_norm_(setup.model.parameters(), 1e-3)
    clip_grad_norm_(setup.model.parameters(), math.inf)
    setup.loss().backward()
    clip_grad_norm_(setup.model.parameters(), 1e-3)
    late, probe, mixed = of(told, GradientsClipped)
    assert late.already_used == late.parameters
    assert (probe.already_used, probe.only_measured) == (probe.parameters, True)
    assert not mixed.already_used


def test_a_pytorch_error_is_raised_unchanged(told):
    setup = Setup()
    setup.loss().backward()
    setup.model.weight.grad.fill_(math.nan)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(setup.model.parameters(), 1.0, error_if_nonfinite=True)
    with pytest.raises(TypeError):
        clip_grad_norm_(setup.model.parameters())
    assert not of(told, GradientsClipped)


def test_the_scaler(told):
    setup, scaler = Setup(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    setup.update()
    setup.optimizer.zero_grad()
    scaler.scale(setup.loss()).backward()
    clip_grad_norm_(setup.model.parameters(), math.inf)
    scaler.unscale_(setup.optimizer)
    clip_grad_norm_(setup.model.parameters(), 1.0)
    scaler.step(setup.optimizer)
    scaler.update()
    before, after = of(told, GradientsClipped)
    assert before.scaled == before.parameters
    assert not after.scaled
    (scaled,) = of(told, LossScaled)
    assert (scaled.scale, scaled.autocast, scaled.dtype) == (1024.0, None, "float32")
    assert len(of(told, GradientsUnscaled)) == 1
    assert not of(told, StepSkipped)


def test_internal_unscaling_is_ignored_and_a_skipped_step_reported(told):
    setup, scaler = Setup(), torch.amp.GradScaler("cpu", init_scale=2.0**120)
    for factor in (1.0, 1e30):
        setup.optimizer.zero_grad()
        scaler.scale(setup.loss() * factor).backward()
        scaler.step(setup.optimizer)
        scaler.update()
    assert not of(told, GradientsUnscaled)
    assert len(of(told, StepSkipped)) >= 1


def test_a_disabled_scaler_is_ignored(told):
    setup, scaler = Setup(), torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(2):
        setup.optimizer.zero_grad()
        scaler.scale(setup.loss()).backward()
        scaler.step(setup.optimizer)
        scaler.update()
    assert not of(told, LossScaled)
    assert not of(told, StepSkipped)
