"""The gradients grow a thousandfold, update after update, and the loss goes with them.

What you see
    The gradient norm climbs by orders of magnitude and does not come back. The loss follows, and some updates later
    it is ``inf`` or ``nan``.

Why it happens
    Large numbers are numbers. An optimizer multiplies them by the learning rate and adds.

Fix
    A lower learning rate, with warm-up; clip the norm; look at how the weights are initialised and the inputs scaled.

When this is fine
    A spike in one update, warm-up, a norm that is clipped, a learning rate finder (the rate has grown as well), a
    term of the loss that is switched on, rewards that arrive at last, parameters that join late, adversaries that
    take turns. None of them goes on growing. Told only for a program with one optimizer that clips nothing and whose
    loss is a plain number: where, from one update to the next without a break, both loss and norm grow by half or
    more at a like rate over the same parameters, and not more and more slowly, as with a factor that is annealed, until
    the norm is more than a thousand times what it was, without counting the largest leap. A slower growth, and one
    that falls between two stretches that are watched in full, is not seen.

References
    Pascanu et al., 2013, "On the difficulty of training recurrent neural networks", arXiv:1211.5063
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import BackwardEnded, Event, Gap, GradientsClipped, Ref, StepTaken

TIMES = 1000
GROWS = 1.5  # times the update before
LIKE = 2  # times the rate at which it began is a like rate


_Update = tuple[StepTaken, float, float]
"""What is compared: a step, its norm and its loss."""


class Detector(failure.Detector):
    """Follows a growth from update to update."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StepTaken, BackwardEnded, GradientsClipped, Gap)

    def __init__(self) -> None:
        self._why_not = ""
        self._optimizer: Ref | None = None
        self._loss: float | None = None
        self._read = False
        self._growth: list[_Update] = []
        """Updates without a break, each larger than the one before."""

    def observe(self, event: StepTaken | BackwardEnded | GradientsClipped | Gap) -> Evidence | None:
        """Return evidence once the growth is a thousandfold."""
        if isinstance(event, StepTaken):
            self._step(event)
            return self._judged(event) if len(self._growth) > 2 else None
        if isinstance(event, BackwardEnded):
            self._loss = event.value
        elif isinstance(event, GradientsClipped):
            self._why_not = self._why_not or ("" if event.probe else "the gradients are clipped")
        else:
            self._growth = []
        return None

    def _step(self, event: StepTaken) -> None:
        loss, self._loss = self._loss, None
        self._optimizer = self._optimizer or event.optimizer
        if event.optimizer is not self._optimizer:
            self._why_not = self._why_not or "several optimizers take turns"
        if event.norm is None or loss is None or event.closure or not event.rates:
            self._growth = []
            return
        self._read = True
        now, growth = (event, event.norm, loss), self._growth
        if not (0 < event.norm < math.inf and 0 < loss < math.inf):
            self._growth = []
        elif growth and _grows(growth[-1], now) and _is_like(growth[0][0], event):
            growth.append(now)
        else:
            self._growth = [now]

    def _judged(self, event: StepTaken) -> Evidence | None:
        growth = self._growth
        if self._why_not:
            return None
        leap = max(after / before for (_, before, _), (_, after, _) in pairwise(growth))
        (first, first_norm, first_loss), (_, middle_norm, _) = growth[0], growth[len(growth) // 2]
        _, norm, loss = growth[-1]
        since = first.update
        slows_down = norm / middle_norm < middle_norm / first_norm
        if norm <= TIMES * leap * first_norm or slows_down:
            return None
        return Evidence(
            message=f"From update {since} to {event.update} the gradient norm grew from {first_norm:.3g} to "
            f"{norm:.3g} and the loss from {first_loss:.3g} to {loss:.3g}, at every update in between.",
            location=event.place,
            update=since,
        )

    def inconclusive(self) -> str:
        """Return why there is nothing to compare with."""
        return self._why_not or ("" if self._read else "no update had a norm and a loss that could be read")


def _grows(before: _Update, now: _Update) -> bool:
    return now[1] >= GROWS * before[1] and now[2] >= GROWS * before[2]


def _is_like(first: StepTaken, now: StepTaken) -> bool:
    """True for a step of as many backwards on the same gradients, at a like rate."""
    alike = now.with_gradient == first.with_gradient and now.backwards == first.backwards
    return alike and max(now.rates) <= LIKE * max(first.rates)


FAILURE = Failure(
    code="GRD008",
    title="The gradients explode",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=2.5)
for step in range(16):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(16):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
""",
    fix="Lower the learning rate, or clip the norm of the gradients.",
    detector=Detector,
)
