"""GradScaler: what it multiplies, and what it leaves out."""

import pytest
import torch
from torch import nn

from trueloop.tracing.events import BackwardStarted, GradientsUnscaled, LossScaled, StepSkipped, StepTaken


class Run:
    """A model with its optimizer and scaler."""

    def __init__(self, **options):
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, **options)

    def backward(self, factor=1.0, divide=1):
        out = self.model(torch.ones(1, 2)).sum() * factor
        (self.scaler.scale(out) / divide).backward()


def test_scaled_and_stepped(everything):
    attachment, told = everything
    run = Run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run.backward()
    run.scaler.step(run.optimizer)
    run.scaler.update()
    (scaled,), (began,), (step,) = told(LossScaled), told(BackwardStarted), told(StepTaken)
    assert (scaled.scale, scaled.enabled, scaled.autocast, scaled.dtype) == (8.0, True, "bfloat16", "bfloat16")
    assert began.scaled
    assert step.scaler is scaled.scaler is attachment.stream.registry.ref(run.scaler)
    assert told(GradientsUnscaled) == told(StepSkipped) == []
    assert scaled.location.source_location.path == step.location.source_location.path == __file__
    assert attachment.program.stepping_scaler is None


@pytest.mark.parametrize("divide", [1, 4])
def test_a_root_made_of_a_scaled_loss_is_scaled(everything, divide):
    _, told = everything
    run = Run()
    run.backward(divide=divide)
    run.model(torch.ones(1, 2)).sum().backward()
    assert [event.scaled for event in told(BackwardStarted)] == [True, False]


def test_unscaled_by_the_program(everything):
    attachment, told = everything
    run = Run()
    run.backward()
    windows = next(each._windows for each in attachment._hooks if hasattr(each, "_windows"))
    assert windows.scaled
    run.scaler.unscale_(run.optimizer)
    (event,) = told(GradientsUnscaled)
    assert event.optimizer is attachment.stream.registry.ref(run.optimizer)
    assert not windows.scaled
    run.scaler.step(run.optimizer)
    (step,) = told(StepTaken)
    assert step.grad_norm == pytest.approx(3**0.5)


def test_a_skipped_step(everything):
    attachment, told = everything
    run = Run()
    for factor in (1.0, torch.inf, 1.0):
        run.optimizer.zero_grad()
        run.backward(factor)
        run.scaler.step(run.optimizer)
        run.scaler.update()
    (event,) = told(StepSkipped)
    assert (event.update, attachment.stream.update) == (1, 2)
    assert event.location.source_location.path == __file__
    assert [step.nonfinite_gradients for step in told(StepTaken)] == [frozenset()] * 2
    assert [each.scale for each in told(LossScaled)] == [8.0, 8.0, 4.0]


def test_a_raising_step_does_not_disable_it(everything):
    attachment, told = everything
    run = Run()

    def fail(*args):
        raise ZeroDivisionError

    handle = run.optimizer.register_step_pre_hook(fail)
    run.backward()
    with pytest.raises(ZeroDivisionError):
        run.scaler.step(run.optimizer)
    handle.remove()
    assert attachment.program.stepping_scaler is None
    run.scaler.update()
    run.optimizer.zero_grad()
    run.backward()
    run.scaler.step(run.optimizer)
    (step,) = told(StepTaken)
    assert step.scaler is attachment.stream.registry.ref(run.scaler)


def test_a_disabled_scaler_emits_nothing(everything):
    _, told = everything
    run = Run(enabled=False)
    run.backward()
    run.scaler.unscale_(run.optimizer)
    run.scaler.step(run.optimizer)
    assert told(LossScaled) == told(GradientsUnscaled) == told(StepSkipped) == []
    assert [step.scaler for step in told(StepTaken)] == [None]
    assert [event.scaled for event in told(BackwardStarted)] == [False]


def test_several_losses_at_once(everything):
    _, told = everything
    run = Run()
    outs = [run.model(torch.ones(1, 2)).sum() for _ in range(2)]
    torch.autograd.backward(run.scaler.scale(outs))
    assert len(told(BackwardStarted)) == 1
    assert run.model.bias.grad.item() == 16
