"""A GradScaler is at work though the model runs in bfloat16.

Symptom
    None at first. Steps are left out now and then, the loss scale wanders, and time goes into unscaling and checking.

Why nothing raises
    Multiplying the loss and dividing the gradients by the same number changes nothing but roundings.

Look-alikes
    A scaler that is switched off (``enabled=False``) is the usual way to have one code for all types. It is told only
    where an enabled one scaled a loss whose model had run under autocast to bfloat16, which has float32's range: there
    is no underflow to guard against.

Fix
    Leave the scaler out with bfloat16: ``GradScaler(enabled=dtype == torch.float16)``.

References
    PyTorch documentation "Automatic Mixed Precision package", section on gradient scaling,
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.ground.events import Event, LossScaled
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence


class Detector:
    """Every scaled loss tells what type its model ran in."""

    moments: ClassVar[tuple[type[Event], ...]] = (LossScaled,)

    def observe(self, event: LossScaled) -> Evidence | None:
        """Return evidence where that is bfloat16."""
        if not event.enabled or event.autocast != "bfloat16":
            return None
        factor = f" by {event.scale:g}" if event.scale else ""
        return Evidence(
            message=f"GradScaler multiplies the loss{factor}, though the model ran in bfloat16, which has the range of "
            "float32.",
            place=event.place,
        )

    def abstains(self) -> str:
        """Return ""; every scaled loss is seen while watching in full."""
        return ""


FAILURE = Failure(
    code="PRC002",
    title="A GradScaler without float16",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
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
scaler = torch.amp.GradScaler("cpu", enabled=False)
for step in range(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Leave GradScaler out, or switch it off, where the model runs in bfloat16.",
    detector=Detector,
)
