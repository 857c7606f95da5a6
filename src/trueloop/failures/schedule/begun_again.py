"""A scheduler is created again in every epoch, over the same optimizer, and never gets beyond its start.

What you see
    The learning rate stays at its first value, or falls back to it in every epoch, although ``scheduler.step()`` is
    called. With a warm-up, training stays at a tiny learning rate.

Why it happens
    A scheduler counts its own steps, and a new one begins at 0. A ``StepLR(optimizer, 10)`` that makes one step before
    it is replaced never comes to its tenth.

Fix
    Create the scheduler once, next to the optimizer:

        scheduler = StepLR(optimizer, 10)  # before the loop, not in it
        for epoch in range(epochs):
            train_one_epoch(model, loader, optimizer)
            scheduler.step()

When this is fine
    - Each schedule comes to its end before the next one begins: warm restarts, or one schedule for each stage.
    - Each fold, or each model, has an optimizer of its own.
    - You pass ``last_epoch`` to the new scheduler, or load the state of the old one.
    - The next rate follows from the rate before alone, as with ``ExponentialLR``.

How it is detected
    In a run, the sanitizer looks at three schedulers in a row that one line creates for one optimizer, of which the
    first two made equally many steps. It reports them if that is at most half of the schedule's length (of a
    ``LambdaLR``, of the largest integer that its function uses), if each made one step and the rates are the same each
    time, or if a ``StepLR`` was stepped after each update and never changed the rate.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    StepLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.StepLR.html
"""

import weakref
from dataclasses import dataclass
from typing import Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import Ref, SchedulerStepped

MIN_SCHEDULERS: Final = 3


@dataclass(slots=True)
class _Series:
    """Schedulers in a row that one line creates for one optimizer."""

    kind: str
    built_at: CodePosition | None
    rates: tuple[tuple[float, ...], tuple[float, ...]]
    """Learning rates before and after the first step of the first scheduler."""
    updates: int
    """Number of updates of the optimizer before the first step of the latest scheduler."""
    count: int = 1
    steps: int = 0
    """Number of steps of each scheduler before the latest one."""
    same_rates: bool = True
    """Whether the first step of each has the same rates before and after it."""
    is_per_update: bool = True
    reported: bool = False

    def add(self, event: SchedulerStepped) -> bool:
        """Add the first step of the next scheduler; return False if it does not continue the series."""
        steps, updates = event.earlier_calls or 0, event.optimizer_steps - self.updates
        same_line = (event.kind, event.built_at or event.location) == (self.kind, self.built_at)
        if not same_line or event.last_epoch != 1 or updates <= 0 or steps != (self.steps or steps):
            return False
        self.count += 1
        self.steps, self.updates = steps, event.optimizer_steps
        self.same_rates &= (event.rates_before, event.rates_after) == self.rates
        self.is_per_update &= steps == updates
        return True

    def never_advances(self, event: SchedulerStepped) -> bool:
        """Return True if each scheduler is replaced before it has an effect."""
        length = event.planned_steps or max(event.numbers, default=0)
        if length and 2 * self.steps <= length:
            return True
        is_constant = self.same_rates and self.rates[0] == self.rates[1]
        unused_steps = event.kind == "StepLR" and is_constant and self.is_per_update
        return unused_steps or (not event.planned_steps and self.steps == 1 and self.same_rates)


class Detector(BaseDetector):
    """Follows the schedulers of each optimizer."""

    def __init__(self) -> None:
        self._series: weakref.WeakKeyDictionary[Ref, _Series] = weakref.WeakKeyDictionary()

    def on_scheduler_stepped(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence at the first step of the third scheduler."""
        if event.earlier_calls is None:
            return None
        series = self._series.get(event.optimizer)
        if series is None or not series.add(event):
            rates = event.rates_before, event.rates_after
            built_at = event.built_at or event.location
            self._series[event.optimizer] = _Series(event.kind, built_at, rates, event.optimizer_steps)
            return None
        if series.count < MIN_SCHEDULERS or series.reported or not series.never_advances(event):
            return None
        series.reported = True
        length = f" of {event.planned_steps}" if event.planned_steps else ""
        return Evidence(
            message=f"This is the third {event.kind} that one line creates for the same optimizer: each made "
            f"{format_count(series.steps, 'step')}{length} and was replaced by one that begins again.",
            location=event.built_at or event.location,
            related=((event.location, "stepped here"),) if event.built_at and event.location else (),
            first_update=0,
        )

    def inconclusive(self) -> str:
        """Return a reason if no scheduler was stepped."""
        return "" if self._series else "no scheduler was stepped"


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(120, 6)
y = x.sum(dim=1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(6):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for rows in torch.randperm(120).split(20):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    scheduler.step()
print(optimizer.param_groups[0]["lr"])
"""
_CREATED = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)\n"

FAILURE = Failure(
    code="SCH011",
    title="A scheduler is created again in every epoch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {f"    {_CREATED}": "", "for epoch in range(6):\n": f"{_CREATED}for epoch in range(6):\n"}),
    fix="Create the scheduler once, before the loop over the epochs.",
    detector=Detector,
)
