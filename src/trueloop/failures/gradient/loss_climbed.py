"""A hand-written update adds the gradient instead of subtracting it, so the loss rises.

What you see
    The loss rises from the first update on, until it is infinite or the model answers the wrong class with certainty.
    A smaller learning rate only makes it slower.

Why it happens
    The gradient points to where the loss grows. An update has to go the other way: ``p -= lr * p.grad``. ``p.add_(lr *
    p.grad)`` climbs the loss, and PyTorch cannot know what was meant.

Fix
    Subtract the gradient.

        with torch.no_grad():
            p.sub_(lr * p.grad)

When this is fine
    - You maximise the value: a reward, a likelihood, or a loss with a minus sign.
    - You change an input, not the parameters, as an adversarial attack does.
    - An adversary is trained to maximise the loss that another part minimises.

How it is detected
    The sanitizer compares hand-written updates with the gradients. It reports 8 updates in which the parameters moved
    along the gradient of a loss function that is zero or small for right answers (cross-entropy, squared error and the
    like), with a positive weight.

References
    PyTorch tutorial "Learning PyTorch with Examples",
    https://docs.pytorch.org/tutorials/beginner/pytorch_with_examples.html
"""

import weakref
from typing import Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardEnded, Ref, StepTaken

MIN_UPDATES: Final = 8


class Detector(BaseDetector):
    """Counts hand-written updates that climb a loss."""

    def __init__(self) -> None:
        self._loss = ""
        """Kind of the only loss of the latest backward pass, if its weight is positive; "" = unknown."""
        self._first: float | None = None
        self._last: float | None = None
        self._updates: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the loss."""
        sign = event.root_value or 0.0  # where the weight of the loss was not read
        kinds = {
            each.kind for each in event.losses if (sign if each.gradient_weight is None else each.gradient_weight) > 0
        }
        self._loss = kinds.pop() if len(kinds) == 1 and len(event.losses) == 1 else ""
        self._first, self._last = event.root_value if self._first is None else self._first, event.root_value

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the eighth update in a row that climbs a loss."""
        climbs = event.hand_written and event.climbs and self._loss
        times = self._updates[event.optimizer] = self._updates.get(event.optimizer, 0) + 1 if climbs else 0
        if times != MIN_UPDATES:
            return None
        course = ""
        if self._first is not None and self._last is not None:
            course = f", and the loss went from {self._first:.3g} to {self._last:.3g}"
        return Evidence(
            message=f"Updates written in the program add the gradient to the parameters instead of subtracting it: "
            f"{times} in a row climbed the {self._loss} loss{course}.",
            location=event.location,
        )


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
for step in range(20):
    loss = nn.functional.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.01 * p.grad
"""

FAILURE = Failure(
    code="GRD015",
    title="A hand-written update climbs the loss",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"p += 0.01": "p -= 0.01"}),
    fix="Subtract the gradient: `p -= lr * p.grad`.",
    detector=Detector,
)
