"""A step uses gradients that are NaN or infinite, and so the weights become NaN.

What you see
    The loss is ``nan`` from some update on. Every weight the gradient reached is NaN, and stays so: Adam's moments
    too.

Why it happens
    NaN is a number to the hardware. An optimizer adds what it is given.

Fix
    Look at the first batch that did it: an empty batch or mask, log or division by zero, a learning rate that is too
    high, an overflow in float16. Clip gradients, and skip a step whose norm is not finite.

When this is fine
    A GradScaler probes for infinities and leaves such steps out; a program that looks at its loss or gradients and
    skips the batch takes no step either. Certain because the gradients were read as the step used them. The norms are
    read on the CPU only: on an accelerator that would hold the device up, so it is not judged there. Gradients of a
    loss whose prediction and target are swapped (LOS008) are not told of as well.

    Where it came from is found by running the batch once more just before that step, on copies of all that the model
    holds, and in the graph of the loss. It is not told where that cannot be done unnoticed: in several processes, with
    forward hooks, after the batch is gone.

References
    torch.autograd.detect_anomaly, https://docs.pytorch.org/docs/stable/autograd.html
    torch.nn.utils.clip_grad_norm_ and error_if_nonfinite,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

import math
from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.failures.teaching_script import Piece, adding
from trueloop.tracing.events import BackwardEnded, Event, LossSwapped, NotFinite, StepTaken


class Detector(failure.Detector):
    """Remembers the first loss that was not finite, and waits for the step that uses its gradients."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (NotFinite, BackwardEnded, StepTaken, LossSwapped)

    def __init__(self) -> None:
        self._loss: NotFinite | None = None
        self._shown: NotFinite | None = None
        """What running the batch again has shown."""
        self._value: float | None = None
        """Of the newest loss."""
        self._read = self._stepped = self._swapped = False

    def observe(self, event: NotFinite | BackwardEnded | StepTaken | LossSwapped) -> Evidence | None:
        """Return evidence at a step on gradients that are not finite."""
        if isinstance(event, BackwardEnded):
            self._value = event.value
            return None
        if isinstance(event, NotFinite):
            if event.what == "gradient":
                self._shown = event
            else:
                self._loss = self._loss or event
            return None
        if isinstance(event, LossSwapped):
            self._swapped |= bool(event.labels)
            return None
        self._stepped = True
        self._read |= event.norm is not None
        if not event.not_finite:
            self._swapped = False
            if self._loss is not None and self._loss.update < event.update:  # that batch was left out
                self._loss = None
            return None
        if event.scaler is not None or self._swapped:  # a fused optimizer leaves it out itself; LOS008 tells why
            return None
        return self._evidence(event)

    def _evidence(self, event: StepTaken) -> Evidence:
        loss, count = self._loss, len(event.not_finite)
        shown = self._shown if self._shown is not None and self._shown.update == event.update else None
        names = ", ".join(sorted(ref.name for ref in event.not_finite)[:3])
        first = f" The loss was {loss.value} at update {loss.update} already." if loss else ""
        lines = (
            (loss and loss.place, "the loss was not finite here"),
            (shown and shown.operation_place, "it came from here"),
        )
        return Evidence(
            message=f"{event.optimizer.name} stepped on {format_count(count, 'gradient')} that "
            f"{'is' if count == 1 else 'are'} not finite ({names}{', ...' if count > 3 else ''})."
            f"{first}{_origin(loss, shown, self._value)}",
            location=event.place,
            related=tuple((place, words) for place, words in lines if place),
            update=loss.update if loss else event.update,
        )

    def inconclusive(self) -> str:
        """Return a reason where no gradient could be read."""
        if not self._stepped:
            return "no optimizer stepped"
        return "" if self._read else "no gradient could be read: there was none, or not on the CPU"


def _origin(loss: NotFinite | None, shown: NotFinite | None, value: float | None) -> str:
    """Say where it came from, as far as the batch could be run again or the loss's graph said it."""
    words: list[str] = []
    if shown is not None and shown.only_gradient and loss is None:
        words.append(f"The gradient of {shown.operation} in {shown.module} is infinite there{_given(shown)}")
    elif shown is not None and shown.operation and not shown.only_gradient:
        words.append(f"The first such value came out of {shown.operation} in {shown.module}{_given(shown)}")
        if shown.output_finite:
            words.append("It did not reach the model's output, but what is behind it has a gradient")
    elif shown is not None and shown.inputs:
        words.append(f"It came from {shown.inputs}")
    elif shown is not None and shown.output_finite and loss is not None and loss.update == shown.update:
        words.append(f"The model's output was finite: it became {loss.value} between the model and backward")
    elif shown is not None and shown.output_finite and value is not None and math.isfinite(value):
        words.append(
            f"The model's output was finite, and so was the loss ({value:.3g}): only the gradient is not. Look for "
            "log, sqrt or a division at zero between the model and backward, also where it is masked afterwards"
        )
    if loss is not None and loss.operation and (shown is None or shown.only_gradient or not shown.operation):
        words.append(f"In the loss it came out of {loss.operation}{_given(loss)}")
    return "".join(f" {sentence}." for sentence in words)


def _given(event: NotFinite) -> str:
    return f", which was given {event.inputs}" if event.inputs else ""


FAILURE = Failure(
    code="GRD007",
    title="A step uses gradients that are not finite",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.rand(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    error = model(x) - y
    loss = (error * (step < 4)).abs().sqrt().mean()
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.rand(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    error = model(x) - y
    loss = (error.square() + 1e-6).sqrt().mean()
    loss.backward()
    optimizer.step()
""",
    fix="Find the first batch that did it, and skip a step whose gradient norm is not finite.",
    detector=Detector,
    inject=adding(Piece.DATA, 'points[1, 0] = float("nan")  # a value is missing in the source'),
)
