"""Reports of gradient clipping, and the removal of the hooks afterwards."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from trueloop.sanitizer.watch import _attachment
from trueloop.tracing.events import GradientsClipped, GradientsUnscaled, LossScaled, StepSkipped


@pytest.fixture
def reported():
    events = []
    attachment, listener = _attachment(), events.append
    attachment.attach(listener)
    yield events
    attachment.detach(listener)
    assert not attachment.stream.problems


def of(events, event_type):
    return [event for event in events if type(event) is event_type]


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


def test_a_name_imported_before_is_traced_and_restored(reported):
    own = clip_grad_norm_
    setup = Setup()
    setup.update()
    setup.optimizer.zero_grad()
    setup.loss().backward()
    norm = own(setup.model.parameters(), 0.5)
    clip_grad_value_(setup.model.weight, clip_value=0.1)
    first, second = of(reported, GradientsClipped)
    assert (first.kind, first.limit, first.measured, first.only_measured) == (
        "norm",
        0.5,
        pytest.approx(float(norm)),
        False,
    )
    assert len(first.parameters) == 2
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
    attachment, listener = _attachment(), [].append
    attachment.attach(listener)
    try:
        watched = clipped()
    finally:
        attachment.detach(listener)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(bare, clipped(), strict=True))


def test_a_pytorch_error_is_raised_unchanged(reported):
    setup = Setup()
    setup.loss().backward()
    setup.model.weight.grad.fill_(math.nan)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(setup.model.parameters(), 1.0, error_if_nonfinite=True)
    with pytest.raises(TypeError):
        clip_grad_norm_(setup.model.parameters())
    assert not of(reported, GradientsClipped)


def test_the_scaler(reported):
    setup, scaler = Setup(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    setup.update()
    setup.optimizer.zero_grad()
    scaler.scale(setup.loss()).backward()
    clip_grad_norm_(setup.model.parameters(), math.inf)
    scaler.unscale_(setup.optimizer)
    clip_grad_norm_(setup.model.parameters(), 1.0)
    scaler.step(setup.optimizer)
    scaler.update()
    assert len(of(reported, GradientsClipped)) == 2
    (scaled,) = of(reported, LossScaled)
    assert (scaled.scale, scaled.autocast, scaled.dtype) == (1024.0, None, "float32")
    assert len(of(reported, GradientsUnscaled)) == 1
    assert not of(reported, StepSkipped)


def test_internal_unscaling_is_ignored_and_a_skipped_step_reported(reported):
    setup, scaler = Setup(), torch.amp.GradScaler("cpu", init_scale=2.0**120)
    for factor in (1.0, 1e30):
        setup.optimizer.zero_grad()
        scaler.scale(setup.loss() * factor).backward()
        scaler.step(setup.optimizer)
        scaler.update()
    assert not of(reported, GradientsUnscaled)
    assert len(of(reported, StepSkipped)) >= 1


def test_a_disabled_scaler_is_ignored(reported):
    setup, scaler = Setup(), torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(2):
        setup.optimizer.zero_grad()
        scaler.scale(setup.loss()).backward()
        scaler.step(setup.optimizer)
        scaler.update()
    assert not of(reported, LossScaled)
    assert not of(reported, StepSkipped)
