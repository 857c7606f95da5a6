"""Reports of GradScaler: scaled losses, unscaled gradients and skipped steps."""

import math

import pytest
import torch
from torch import nn

from trueloop.tracing.events import BackwardEnded, GradientsUnscaled, LossScaled, ScaleRead, StepSkipped, StepTaken


class Run:
    """A model with its optimizer and scaler."""

    def __init__(self, **options):
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, **options)

    def backward(self, factor=1.0, divide=1):
        out = self.model(torch.ones(1, 2)).sum() * factor
        (self.scaler.scale(out) / divide).backward()


def test_scaled_and_stepped(attached):
    attachment, events_of = attached
    run = Run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run.backward()
    run.scaler.step(run.optimizer)
    run.scaler.update()
    (scaled,), (ended,), (step,) = events_of(LossScaled), events_of(BackwardEnded), events_of(StepTaken)
    assert (scaled.scale, scaled.autocast, scaled.dtype) == (8.0, "bfloat16", "bfloat16")
    assert ended.scale == 8.0
    assert step.scaler is scaled.scaler is attachment.stream.registry.ref(run.scaler)
    assert events_of(GradientsUnscaled) == events_of(StepSkipped) == []
    assert scaled.location.source_location.path == step.location.source_location.path == __file__
    assert attachment.program.stepping_scaler is None


@pytest.mark.parametrize("divide", [1, 4])
def test_a_root_made_of_a_scaled_loss_is_scaled(attached, divide):
    _, events_of = attached
    run = Run()
    run.backward(divide=divide)
    run.model(torch.ones(1, 2)).sum().backward()
    assert [event.scale for event in events_of(BackwardEnded)] == [8.0, None]


def test_unscaled_by_the_program(attached):
    attachment, events_of = attached
    run = Run()
    run.backward()
    run.scaler.unscale_(run.optimizer)
    (event,) = events_of(GradientsUnscaled)
    assert event.parameters == set(map(attachment.stream.registry.ref, run.model.parameters()))
    run.scaler.step(run.optimizer)
    (step,) = events_of(StepTaken)
    assert step.grad_norm == pytest.approx(3**0.5)


def test_a_skipped_step(attached):
    attachment, events_of = attached
    run = Run()
    for factor in (1.0, torch.inf, 1.0):
        run.optimizer.zero_grad()
        run.backward(factor)
        run.scaler.step(run.optimizer)
        run.scaler.update()
    (event,) = events_of(StepSkipped)
    assert (event.update, attachment.stream.update) == (1, 2)
    assert event.location.source_location.path == __file__
    assert [math.isfinite(step.grad_norm) for step in events_of(StepTaken)] == [True] * 2
    assert [each.scale for each in events_of(LossScaled)] == [8.0, 8.0, 4.0]


def test_a_raising_step_does_not_disable_it(attached):
    attachment, events_of = attached
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
    (step,) = events_of(StepTaken)
    assert step.scaler is attachment.stream.registry.ref(run.scaler)


def test_a_disabled_scaler_emits_nothing(attached):
    _, events_of = attached
    run = Run(enabled=False)
    run.backward()
    run.scaler.unscale_(run.optimizer)
    run.scaler.step(run.optimizer)
    assert events_of(LossScaled) == events_of(GradientsUnscaled) == events_of(StepSkipped) == []
    assert [step.scaler for step in events_of(StepTaken)] == [None]
    assert [event.scale for event in events_of(BackwardEnded)] == [None]


def test_the_program_reads_the_factor(attached):
    _, events_of = attached
    run = Run()
    run.backward()
    assert not events_of(ScaleRead), "the hooks read it too"
    run.scaler.get_scale()
    assert len(events_of(ScaleRead)) == 1


def test_several_losses_at_once(attached):
    _, events_of = attached
    run = Run()
    outs = [run.model(torch.ones(1, 2)).sum() for _ in range(2)]
    torch.autograd.backward(run.scaler.scale(outs))
    assert len(events_of(BackwardEnded)) == 1
    assert run.model.bias.grad.item() == 16
