"""The batches at the end of an epoch do not fill a window, and are thrown away or pushed into the next one.

Symptom
    The last few batches of each epoch are computed and never trained on. Or the first update of the next epoch is made
    of more batches than the others, and larger.

Why nothing raises
    ``if (step + 1) % K == 0`` is simply false at the end. What the gradients then hold is nobody's business.

Look-alikes
    A short window that is stepped at the end of the epoch, a counter that runs on over epochs so that the window is
    filled by the next one, a loader whose length is a multiple of K, and probes of gradients are all right.
    Certain because the gradients themselves are followed: two windows or more had K backwards, one per batch; the
    loader ended with the rest of the division left over; and then the gradients were cleared, or the next step had
    more than K backwards in it.

Fix
    Step the short window too: ``if (step + 1) % K == 0 or step + 1 == len(loader)``, and divide its losses by the
    batches it has.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient accumulation,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    Hugging Face Accelerate guide "Performing gradient accumulation" (end of the dataloader),
    https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.ground.events import Event, WindowLeftOver
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence
from trueloop.ground.teaching import TeachingLoop


class Detector:
    """What was left over is told with what became of it."""

    moments: ClassVar[tuple[type[Event], ...]] = (WindowLeftOver,)

    def observe(self, event: WindowLeftOver) -> Evidence:
        """Return evidence."""
        left = f"{event.left} of {event.batches} batches"
        what = (
            f"The gradients of the last {left} of the epoch were cleared without a step: they are computed and never "
            "trained on"
            if event.cleared
            else f"The gradients of the last {left} of the epoch went into the first update of the next one, which is "
            f"made of {event.backwards} batches instead of {event.window}"
        )
        return Evidence(
            message=f"{what}.",
            place=event.place,
            fix=f"Step a short window too: if (step + 1) % {event.window} == 0 or step + 1 == len(loader).",
        )

    def abstains(self) -> str:
        """Return ""; the ends of loaders are always seen."""
        return ""


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.step_short_window = False


FAILURE = Failure(
    code="GRD004",
    title="The last window of an epoch is dropped",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(240, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    optimizer.zero_grad()
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets) / 4
        loss.backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(240, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    optimizer.zero_grad()
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets) / (4 if step < 12 else 3)
        loss.backward()
        if (step + 1) % 4 == 0 or step + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    fix="Step the last, short window of each epoch too.",
    detector=Detector,
    inject=inject,
)
