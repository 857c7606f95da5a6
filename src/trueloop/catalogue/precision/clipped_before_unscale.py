"""Gradients are clipped while they are still multiplied by GradScaler's factor.

Symptom
    With mixed precision in float16 training crawls, as with a tiny learning rate; without it the same settings work.

Why nothing raises
    GradScaler multiplies the loss by a large factor (65536 at first) and divides the gradients inside its ``step``.
    Clipped before that, a norm of 65536 times its true size is cut to the limit, and then divided by 65536.

Look-alikes
    ``scaler.unscale_(optimizer)`` before clipping, a scaler that is switched off, and a norm that is only read
    (``max_norm=inf``) are all right, and so is a limit that was multiplied by the factor too. Certain because each
    gradient is followed from the scaled backward to the clipping.

Fix
    Call ``scaler.unscale_(optimizer)`` after the last backward of the window and before clipping; ``scaler.step``
    knows that it was done.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient clipping,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.ground.events import Event, GradientsClipped, LossScaled
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence

SHARE = 0.01  # of the factor: nobody clips at 655 who has not multiplied the limit by 65536 as well


class Detector:
    """Every clipping tells which of its gradients are scaled."""

    moments: ClassVar[tuple[type[Event], ...]] = (LossScaled, GradientsClipped)

    def __init__(self) -> None:
        self._scale: float | None = None

    def observe(self, event: LossScaled | GradientsClipped) -> Evidence | None:
        """Return evidence where scaled gradients are clipped."""
        if isinstance(event, LossScaled):
            self._scale = event.scale
            return None
        if event.probe or not event.scaled or (self._scale and event.limit >= SHARE * self._scale):
            return None
        by = f" by {self._scale:g}" if self._scale else ""
        norm = f" The norm it saw was {event.measured:.3g}." if event.measured else ""
        return Evidence(
            message=f"{len(event.scaled)} gradients were clipped at {event.limit:g} while GradScaler still had them "
            f"multiplied{by}.{norm}",
            place=event.place,
        )

    def abstains(self) -> str:
        """Return ""; clipping and scaling are always seen."""
        return ""


FAILURE = Failure(
    code="PRC001",
    title="Gradients are clipped before they are unscaled",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Call scaler.unscale_(optimizer) before clipping.",
    detector=Detector,
)
