"""A learning rate schedule runs past the end of its length.

What you see
    The learning rate was almost zero and the loss had settled; then the rate climbs back up, and the loss with it.
    A polynomial decay stays at zero and nothing is learned. A hand-written linear decay goes below zero, so the
    updates increase the loss.

Why it happens
    A cosine is periodic: beyond ``T_max`` it rises again. Only ``OneCycleLR`` raises beyond its end, and an
    optimizer rejects negative rates only when it is built. A ``T_max`` in epochs with a step per batch is enough,
    or more epochs than planned.

Fix
    Give the schedule the length of the run, in the unit in which it is stepped.

        CosineAnnealingLR(optimizer, T_max=epochs)  # step() per epoch
        CosineAnnealingLR(optimizer, T_max=epochs * len(loader))  # per update
        LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

When this is fine
    - ``CosineAnnealingWarmRestarts`` and ``CyclicLR`` rise again by design.
    - The schedule is stepped once more after the last update, or beyond its end without updates.
    - Linear warm-ups and milestones, after which the rate stays constant.

How it is detected
    At run time: updates were made beyond the end of a schedule that ends in a minimum, or at a rate below zero that
    was above zero before. A ``CosineAnnealingLR`` that makes waves on purpose is reported too, hence a warning;
    ``CosineAnnealingWarmRestarts`` states that intent.

References
    torch.optim.lr_scheduler.CosineAnnealingLR,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, arXiv:1608.03983
"""

import weakref

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Ref, SchedulerStepped

ENDING = frozenset({"CosineAnnealingLR", "PolynomialLR", "SequentialLR", "ChainedScheduler"})


class Detector(BaseDetector):
    """Reports updates at a learning rate from beyond the end of a schedule."""

    subscribes_to = (SchedulerStepped,)

    def __init__(self) -> None:
        self._first: weakref.WeakKeyDictionary[Ref, tuple[int, int, tuple[float, ...]]] = weakref.WeakKeyDictionary()
        """Epoch, optimizer steps and learning rates at the first step; not the event, which holds its scheduler."""
        self._steps: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._ends = False

    def observe(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence at the first scheduler step after such an update."""
        scheduler = event.scheduler
        if scheduler in self._reported:
            return None
        first = (event.last_epoch, event.optimizer_steps, event.rates_before)
        first_epoch, first_steps, first_rates = self._first.setdefault(scheduler, first)
        steps_before = self._steps.get(scheduler, event.optimizer_steps)
        self._steps[scheduler] = event.optimizer_steps
        self._ends |= event.kind in ENDING and event.planned_steps is not None
        updates, epochs = event.optimizer_steps - first_steps, event.last_epoch - first_epoch
        if event.optimizer_steps == steps_before or _counts_micro_batches(epochs, updates):
            return None
        message = _describe_below_zero(first_rates, event) or _describe_beyond_end(event)
        if not message:
            return None
        self._reported.add(scheduler)
        often = " It is stepped once per update." if updates == epochs > 2 else ""
        return Evidence(message=f"{event.kind} {message}.{often}", location=event.location)

    def inconclusive(self) -> str:
        """Return a reason where no schedule with an end was observed."""
        return "" if self._ends else "no schedule that ends was seen"


def _describe_below_zero(first_rates: tuple[float, ...], event: SchedulerStepped) -> str:
    """Describe updates at a rate below zero that was above zero before; "" if there were none."""
    below = [rate for rate, once in zip(event.rates_before, first_rates, strict=False) if rate < 0 < once]
    return f"has made the learning rate negative: updates at {min(below):.3g} increase the loss" if below else ""


def _describe_beyond_end(event: SchedulerStepped) -> str:
    """Describe updates beyond the end of a schedule that has one; "" if there were none."""
    if event.planned_steps is None or event.kind not in ENDING or event.last_epoch - 1 <= event.planned_steps:
        return ""
    stuck = bool(event.rates_before) and not any(event.rates_before) and not any(event.rates_after)
    if not stuck and not any(
        after > before for before, after in zip(event.rates_before, event.rates_after, strict=False)
    ):
        return ""
    after = (
        "the learning rate stays at 0" if stuck else f"the learning rate rises again, to {max(event.rates_after):.3g}"
    )
    return f"has a length of {event.planned_steps} steps and has made {event.last_epoch}: {after}"


def _counts_micro_batches(advances: int, updates: int) -> bool:
    """Return True for several scheduler steps per update: that is SCH002, or a loop over processes."""
    return advances > 1.5 * updates + 1


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["schedule"] == "cosine", "There is no cosine schedule.", schedule="cosine")
    loop.replace(Piece.SCHEDULER, "T_max=total_updates", "T_max=epochs")


BAD = """
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
"""

FAILURE = Failure(
    code="SCH003",
    title="Learning rate schedule runs past its end",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    scheduler.step()": "scheduler.step()"}),
    fix="Give the schedule the length of the run, in the unit in which it is stepped.",
    detector=Detector,
    inject=inject,
)
