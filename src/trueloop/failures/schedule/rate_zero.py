"""Updates are made at a learning rate of zero, or next to it.

What you see
    The loss of an epoch is exactly that of an untrained model, or stands still from some epoch on, while everything
    looks busy. Afterwards training goes on as if nothing had happened.

Why it happens
    Zero is a rate like any other. A warm-up that begins at 0 costs one update if it is advanced with every update, and
    a whole epoch if it is advanced with every epoch; an integer division makes it longer still. A decay that was meant
    for epochs, ``StepLR(step_size=30)``, and is advanced with every batch, is next to zero within the first epoch.

Fix
    Begin the warm-up above zero, ``(step + 1) / warmup``, and advance it with every update. Advance a schedule that
    counts epochs once per epoch, outside the loop over batches.

When this is fine
    One update at zero, where a warm-up begins or a cycle turns; groups of which only some are at zero, frozen that
    way; another optimizer that trains meanwhile; an optimizer built with rate 0 and no schedule; the end of a schedule
    that has run its length (SCH003 tells what comes after). Reported is a schedule under which two updates or more were
    made with the rates of all groups at zero, while no other optimizer trained, or 16 with all of them below a
    trillionth of the highest: that is 100,000 times less than what moves a weight in float32, and decays that end near
    zero, as a cosine does, are there for an update or two. Updates that only refresh statistics would be named too:
    hence a warning.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    Goyal et al., "Accurate, Large Minibatch SGD", section 2.2, 2017, arXiv:1706.02677
"""

from __future__ import annotations

import weakref
from typing import ClassVar, Final

from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, Ref, ScheduleAdvanced, StepTaken
from trueloop.tracing.object_facts import Facts

NOTHING: Final = 1e-12  # of the highest rate: float32 has 1e-7 of a weight
LONGEST: Final = 16  # updates next to zero, such as a decay ends in


class Detector(failure.Detector):
    """Counts the updates between advances of a schedule whose rates were next to zero all the while."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ScheduleAdvanced, StepTaken)

    def __init__(self) -> None:
        self._last: weakref.WeakKeyDictionary[Ref, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._zero: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._highest: weakref.WeakKeyDictionary[Ref, float] = weakref.WeakKeyDictionary()
        """Of the rates a schedule has given so far."""
        self._training = Facts[Ref, bool]()
        """Optimizers whose latest update had a rate."""
        self._told: weakref.WeakSet[Ref] = weakref.WeakSet()

    def observe(self, event: ScheduleAdvanced | StepTaken) -> Evidence | None:
        """Return evidence at the advance that follows the second such update."""
        if isinstance(event, StepTaken):
            if event.rates:
                training = any(event.rates)
                if self._training.get(event.optimizer) is not training:
                    self._training.put(event.optimizer, training)
            return None
        last = self._last.get(event.scheduler)
        self._last[event.scheduler] = (event.count, event.optimizer_steps)
        rate = max(map(abs, event.before), default=0.0)
        self._highest[event.scheduler] = highest = max(rate, self._highest.get(event.scheduler, 0.0))
        at_zero = bool(event.before) and rate <= NOTHING * highest
        ended = event.horizon is not None and event.count > event.horizon
        if not at_zero or ended or self._others_train(event.optimizer):
            self._zero[event.scheduler] = 0
            return None
        updates = _updates_between(last, event)
        self._zero[event.scheduler] = zero = self._zero.get(event.scheduler, 0) + updates
        if zero < (LONGEST if rate else 2) or event.scheduler in self._told:
            return None
        self._told.add(event.scheduler)
        where = "The first " if event.optimizer_steps == zero else "The latest " if not rate else ""
        at = f"less than {NOTHING * highest:.2g}, where it was {highest:.2g} before" if rate else "0"
        return Evidence(
            message=f"{where}{format_count(zero, 'update')} under this {event.kind} were made at a learning rate of {at}: "
            "nothing was learned.",
            location=event.place,
            update=max(0, event.update - zero),
        )

    def _others_train(self, optimizer: Ref) -> bool:
        return any(training and other is not optimizer for other, training in self._training.items())


def _updates_between(last: tuple[int, int] | None, event: ScheduleAdvanced) -> int:
    """Updates since the advance before, where it was seen, or since training began."""
    if last is None:
        return event.optimizer_steps if event.count == 1 else 0
    count, steps = last
    return event.optimizer_steps - steps if event.count == count + 1 else 0


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["schedule"] == "warmup", "There is no warm-up.", schedule="warmup")
    loop.replace(Piece.SCHEDULER, "(update + 1) / warm_up", "(update + 1) // warm_up")


FAILURE = Failure(
    code="SCH004",
    title="The learning rate is zero",
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
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, epoch / 3))
for epoch in range(5):
    for batch in range(0, 120, 30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 30]), targets[batch:batch + 30])
        loss.backward()
        optimizer.step()
    warmup.step()
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
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / 3))
for epoch in range(5):
    for batch in range(0, 120, 30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch:batch + 30]), targets[batch:batch + 30])
        loss.backward()
        optimizer.step()
    warmup.step()
    print(epoch, optimizer.param_groups[0]["lr"], loss.item())
""",
    fix="Let the warm-up begin above zero and advance it with every update; advance a decay by epochs once per epoch.",
    detector=Detector,
    inject=inject,
)
