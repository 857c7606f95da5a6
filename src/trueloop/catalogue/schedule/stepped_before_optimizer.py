"""The schedule is advanced before the first update of its period, so every rate comes one period too early.

Symptom
    The first learning rate is never used. With a decay by epochs, training begins at the second value; with one decay
    at the end nobody notices. torch warns once, and many programs filter warnings.

Why nothing raises
    A scheduler sets the first rate when it is built, and ``step()`` means "the period is over". Up to torch 1.0 it
    meant "a period begins", and stood at the top of the loop; old code still does.

Look-alikes
    Catching up after a restart, by stepping the scheduler some times before training; a GradScaler that skips the first
    updates; a schedule that is advanced for each micro-batch; ``ReduceLROnPlateau`` after a validation before training;
    a warm-up from rate 0 that is stepped over; ``step(epoch)`` with 0 first. Reported is a line that advanced the
    schedule before any update of its optimizer, with no gradient left to be used, and that was reached again after
    updates. A schedule written to be counted from 1 would be named too: hence a warning.

Fix
    Move ``scheduler.step()`` behind the updates it follows: behind ``optimizer.step()`` or to the end of the epoch.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    pytorch/pytorch issue 20124, https://github.com/pytorch/pytorch/issues/20124
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import ClassVar

from trueloop.ground.events import BackwardStarted, Event, Ref, ScheduleAdvanced, StepSkipped, StepTaken
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence, Place
from trueloop.ground.teaching import Operation, TeachingLoop


@dataclass(slots=True)
class Early:
    """A scheduler's first advance, before any update of its optimizer."""

    place: Place
    pending: int
    """Backwards since the latest step of any optimizer."""
    micro: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    update_at_micro: int | None = None
    """Backwards before the first update after it."""
    update_place: Place | None = None


class Detector:
    """Remembers the first advance of each scheduler, and waits for the second one."""

    moments: ClassVar[tuple[type[Event], ...]] = (BackwardStarted, ScheduleAdvanced, StepTaken, StepSkipped)

    def __init__(self) -> None:
        self._early: weakref.WeakKeyDictionary[Ref, Early] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[Ref, list[Early]] = weakref.WeakKeyDictionary()
        self._settled: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._skipped: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._pending = 0

    def observe(self, event: BackwardStarted | ScheduleAdvanced | StepTaken | StepSkipped) -> Evidence | None:
        """Return evidence when an early line is reached again after updates."""
        if isinstance(event, BackwardStarted):
            self._pending += 1
        elif isinstance(event, StepSkipped):
            self._skipped.add(event.optimizer)
        elif isinstance(event, StepTaken):
            self._pending = 0
            for early in self._optimizers.pop(event.optimizer, ()) if self._optimizers else ():
                early.update_at_micro, early.update_place = event.micro, event.place
        else:
            return self._advanced(event)
        return None

    def _advanced(self, event: ScheduleAdvanced) -> Evidence | None:
        scheduler = event.scheduler
        if scheduler in self._settled:
            return None
        early = self._early.pop(scheduler, None)
        if early is None:
            if _is_early(event) and event.optimizer not in self._skipped and event.place is not None:
                early = self._early[scheduler] = Early(
                    event.place, self._pending, event.micro, event.before, event.after
                )
                self._optimizers.setdefault(event.optimizer, []).append(early)
            else:
                self._settled.add(scheduler)
            return None
        self._settled.add(scheduler)
        again = event.optimizer_steps > 0 and event.place == early.place and early.update_at_micro is not None
        amid_a_window = early.pending > 0 and early.update_at_micro != early.micro
        if not again or amid_a_window or event.optimizer in self._skipped:
            return None
        changed = early.before != early.after
        effect = (
            f"the rate {early.before[0]:.3g} was never used, training began at {early.after[0]:.3g}"
            if changed
            else "every change of the rate comes one period too early"
        )
        return Evidence(
            message=f"{event.kind} was advanced before the first update of its optimizer: {effect}.",
            place=event.place,
            related=((early.update_place, "the update it should follow"),) if early.update_place else (),
            update=0,
        )

    def abstains(self) -> str:
        """Nothing is left open."""
        return ""


def _is_early(event: ScheduleAdvanced) -> bool:
    from_zero = bool(event.before) and not any(event.before)  # somebody steps over a first rate of 0
    return (
        event.optimizer_steps == 0
        and event.count > 0
        and event.kind != "ReduceLROnPlateau"
        and bool(event.before)
        and not from_zero
    )


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.after_window = [Operation.SCHEDULE, Operation.CLIP, Operation.UPDATE, Operation.CLEAR]


FAILURE = Failure(
    code="SCH001",
    title="The schedule is advanced before the optimizer",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import warnings
import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)
inputs = torch.randn(120, 6)
targets = inputs.sum(dim=1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
for epoch in range(4):
    scheduler.step()
    for batch in range(0, 120, 20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 20]), targets[batch:batch + 20])
        loss.backward()
        optimizer.step()
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
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
for epoch in range(4):
    for batch in range(0, 120, 20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 20]), targets[batch:batch + 20])
        loss.backward()
        optimizer.step()
    print(epoch, optimizer.param_groups[0]["lr"], loss.item())
    scheduler.step()
""",
    fix="Call scheduler.step() after the updates of its period: after optimizer.step(), or at the end of the epoch.",
    detector=Detector,
    inject=inject,
)
