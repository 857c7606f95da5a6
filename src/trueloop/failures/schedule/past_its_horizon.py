"""A schedule that was made for a certain length runs on beyond it.

What you see
    The learning rate was almost zero and the loss settled; then the rate climbs back to where it began and the loss
    with it. With a polynomial decay it stays at zero, and nothing is learned any more. A straight line that was written
    by hand goes on below zero: the updates climb the loss in place of descending it.

Why it happens
    A cosine goes on for ever: beyond ``T_max`` it rises again. Only ``OneCycleLR`` refuses to be advanced beyond its
    end, and only where it is built does an optimizer refuse a rate below zero. A ``T_max`` in epochs with a ``step()``
    in every batch, or more epochs than planned, is all it takes.

Fix
    Give the schedule the length of the run in the unit it is advanced in: ``T_max=epochs`` with a step per epoch,
    ``T_max=epochs * len(loader)`` with a step per update. One written by hand wants a ``max(0.0, ...)`` as well.

When this is fine
    ``CosineAnnealingWarmRestarts`` and ``CyclicLR``, which go up again by design; the one advance after the last
    update; linear warm-ups and milestones, after which the rate stays; advances with no updates between them. Reported
    is a schedule that ends in a minimum, once updates have been made beyond its end, and any schedule that has brought
    a rate from above zero to below it, once updates have been made there. A ``CosineAnnealingLR`` that is used for
    waves on purpose is named too: hence a warning. ``CosineAnnealingWarmRestarts`` says what is meant.

References
    torch.optim.lr_scheduler.CosineAnnealingLR,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, arXiv:1608.03983
"""

from __future__ import annotations

import weakref
from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, Ref, ScheduleAdvanced

ENDING = frozenset({"CosineAnnealingLR", "PolynomialLR", "SequentialLR", "ChainedScheduler"})


class Detector(failure.Detector):
    """Waits for updates at a rate from beyond the end."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ScheduleAdvanced,)

    def __init__(self) -> None:
        self._first: weakref.WeakKeyDictionary[Ref, ScheduleAdvanced] = weakref.WeakKeyDictionary()
        self._steps: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._told: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._ends = False

    def observe(self, event: ScheduleAdvanced) -> Evidence | None:
        """Return evidence at the first advance behind such an update."""
        scheduler = event.scheduler
        if scheduler in self._told:
            return None
        first = self._first.setdefault(scheduler, event)
        steps_before = self._steps.get(scheduler, event.optimizer_steps)
        self._steps[scheduler] = event.optimizer_steps
        self._ends |= event.kind in ENDING and event.horizon is not None
        updates = event.optimizer_steps - first.optimizer_steps
        if event.optimizer_steps == steps_before or _counts_micro_batches(event.count - first.count, updates):
            return None
        message = _below_zero(first, event) or _beyond(event)
        if not message:
            return None
        self._told.add(scheduler)
        often = " It is advanced once per update." if updates == event.count - first.count > 2 else ""
        return Evidence(message=f"{event.kind} {message}.{often}", location=event.place)

    def inconclusive(self) -> str:
        """Say so where there was nothing that ends."""
        return "" if self._ends else "no schedule that ends was seen"


def _below_zero(first: ScheduleAdvanced, event: ScheduleAdvanced) -> str:
    """Return that updates were made at a rate below zero, which was above it once."""
    below = [rate for rate, once in zip(event.before, first.before, strict=False) if rate < 0 < once]
    return f"has gone below zero: updates at a rate of {min(below):.3g} climb the loss" if below else ""


def _beyond(event: ScheduleAdvanced) -> str:
    """Return that updates were made beyond the end of a schedule that has one."""
    if event.horizon is None or event.kind not in ENDING or event.count - 1 <= event.horizon:
        return ""
    stuck = bool(event.before) and not any(event.before) and not any(event.after)
    if not stuck and not any(after > before for before, after in zip(event.before, event.after, strict=False)):
        return ""
    after = "the rate stays at 0" if stuck else f"the rate climbs again, to {max(event.after):.3g} by now"
    return f"was made for {event.horizon} advances and has made {event.count}: {after}"


def _counts_micro_batches(advances: int, updates: int) -> bool:
    """Several advances for each update: that is another failure, SCH002, or a loop over processes."""
    return advances > 1.5 * updates + 1


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["schedule"] == "cosine", "There is no cosine schedule.", schedule="cosine")
    loop.replace(Piece.SCHEDULER, "T_max=total_updates", "T_max=epochs")


FAILURE = Failure(
    code="SCH003",
    title="The schedule runs past its end",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(120, 6)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs = 5
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
for epoch in range(epochs):
    for batch in range(0, 120, 30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 30]), targets[batch:batch + 30])
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(epoch, optimizer.param_groups[0]["lr"], loss.item())
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(120, 6)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs = 5
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
for epoch in range(epochs):
    for batch in range(0, 120, 30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 30]), targets[batch:batch + 30])
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(epoch, optimizer.param_groups[0]["lr"], loss.item())
""",
    fix="Give the schedule the length of the run, counted in what it is advanced for.",
    detector=Detector,
    inject=inject,
)
