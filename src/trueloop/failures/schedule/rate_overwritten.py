"""The program sets the learning rate back after each change that a scheduler makes, so the schedule has no effect.

What you see
    Training is the same with and without the scheduler: the learning rate of each epoch is the one from the start.

Why it happens
    A scheduler writes the rate into the optimizer's groups. A line such as ``group["lr"] = base_lr`` at the start of
    each epoch, or a new warm-up in each epoch, writes over it. Both are plain assignments; the last one counts.

Fix
    Let one of the two set the rate.

        for epoch in range(epochs):
            train_one_epoch(model, optimizer)  # without setting group["lr"]
            scheduler.step()

When this is fine
    - The program sets the rate during a warm-up only, and the scheduler's changes hold afterwards.
    - Several schedulers change the rate of one optimizer.

How it is detected
    In a run, the sanitizer compares the learning rates after a step of a scheduler with those before its next one. It
    reports a scheduler that changed the rate at least 3 times, if each change was taken back before the next step.

References
    torch.optim, "How to adjust learning rate", https://docs.pytorch.org/docs/stable/optim.html
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import Ref, SchedulerStepped, WatchEnded

MIN_CHANGES: Final = 3


@dataclass(slots=True)
class _Changes:
    """What became of the changes that one scheduler made."""

    kind: str
    location: CodePosition | None
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    """Rates before and after the latest step."""
    overwritten: int = 0
    kept: int = 0

    def add(self, event: SchedulerStepped) -> None:
        if self.before != self.after:
            is_back = event.rates_before == self.before
            self.overwritten += is_back
            self.kept += not is_back
        self.before, self.after, self.location = event.rates_before, event.rates_after, event.location


class Detector(BaseDetector):
    """Follows the rates between the steps of each optimizer's only scheduler."""

    def __init__(self) -> None:
        self._changes: weakref.WeakKeyDictionary[Ref, _Changes] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[Ref, weakref.WeakSet[Ref]] = weakref.WeakKeyDictionary()
        """Optimizer -> its schedulers."""

    def on_scheduler_stepped(self, event: SchedulerStepped) -> None:
        """Compare the rates with those after the previous step."""
        self._optimizers.setdefault(event.optimizer, weakref.WeakSet()).add(event.scheduler)
        if event.scheduler not in self._changes:
            self._changes[event.scheduler] = _Changes(event.kind, event.location)
        self._changes[event.scheduler].add(event)

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each scheduler all of whose changes were taken back."""
        for schedulers in self._optimizers.values():
            changes = self._changes.get(next(iter(schedulers))) if len(schedulers) == 1 else None
            if changes is not None and changes.overwritten >= MIN_CHANGES and not changes.kept:
                yield Evidence(
                    message=f"{changes.kind} changed the learning rate {changes.overwritten} times, and each time the "
                    f"program set it back to {max(changes.before):.2g} before the next step.",
                    location=changes.location,
                )


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
for epoch in range(8):
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for rows in torch.randperm(160).split(40):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(epoch, loss.item())
"""

FAILURE = Failure(
    code="SCH016",
    title="The learning rate of a schedule is overwritten",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {'    for group in optimizer.param_groups:\n        group["lr"] = 0.1\n': ""}),
    fix="Set the learning rate by the scheduler only.",
    detector=Detector,
)
