"""The schedule is advanced before the first update of its period, so every rate comes one period too early.

What you see
    The first learning rate is never used. With a decay by epochs, training begins at the second value; with one decay
    at the end nobody notices. torch warns once, and many programs filter warnings.

Why it happens
    A scheduler sets the first rate when it is built, and ``step()`` means "the period is over". Up to torch 1.0 it
    meant "a period begins", and stood at the top of the loop; old code still does.

Fix
    Move ``scheduler.step()`` behind the updates it follows: behind ``optimizer.step()`` or to the end of the epoch.

When this is fine
    Catching up after a restart, by stepping the scheduler some times before training; a GradScaler that skips the first
    updates; a schedule that is advanced for each micro-batch; ``ReduceLROnPlateau`` after a validation before training;
    a warm-up from rate 0 that is stepped over; ``step(epoch)`` with 0 first. Reported is a line that advanced the
    schedule before any update of its optimizer, with no gradient left to be used, and that was reached again after
    updates. A schedule written to be counted from 1 would be named too: hence a warning. The text shows it where a loop
    advances a schedule of known kind in every turn, and its optimizer's first update comes behind that in the loop.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    pytorch/pytorch issue 20124, https://github.com/pytorch/pytorch/issues/20124
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import MANAGED, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.statement_moves import moved_behind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardStarted, Event, Ref, ScheduleAdvanced, StepSkipped, StepTaken


@dataclass(slots=True)
class Early:
    """A scheduler's first advance, before any update of its optimizer."""

    place: CodePosition
    pending: int
    """Backwards since the latest step of any optimizer."""
    micro: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    update_at_micro: int | None = None
    """Backwards before the first update after it."""
    update_place: CodePosition | None = None


class Detector(failure.Detector):
    """Remembers the first advance of each scheduler, and waits for the second one."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (BackwardStarted, ScheduleAdvanced, StepTaken, StepSkipped)

    def __init__(self) -> None:
        self._early: weakref.WeakKeyDictionary[Ref, Early] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[Ref, list[Early]] = weakref.WeakKeyDictionary()
        self._settled: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._skipped: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._pending = 0

    def observe(self, event: BackwardStarted | ScheduleAdvanced | StepTaken | StepSkipped) -> Evidence | None:
        """Return evidence when an early line is reached again after updates."""
        if isinstance(event, StepTaken):
            self._pending = 0
            for early in self._optimizers.pop(event.optimizer, ()) if self._optimizers else ():
                early.update_at_micro, early.update_place = event.micro, event.place
        elif isinstance(event, BackwardStarted):
            self._pending += 1
        elif isinstance(event, StepSkipped):
            self._skipped.add(event.optimizer)
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
            f"the rate {early.before[0]:.6g} was never used, training began at {early.after[0]:.6g}"
            if changed
            else "every change of the rate comes one period too early"
        )
        return Evidence(
            message=f"{event.kind} was advanced before the first update of its optimizer: {effect}.",
            location=event.place,
            related=((early.update_place, "the update it should follow"),) if early.update_place else (),
            update=0,
        )


def _is_early(event: ScheduleAdvanced) -> bool:
    if event.optimizer_steps or event.count <= 0 or event.kind == "ReduceLROnPlateau":
        return False
    return bool(event.before) and any(event.before)  # somebody steps over a first rate of 0


FROM_THE_FIRST_RATE: Final = frozenset((
    "StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "OneCycleLR",
    "PolynomialLR", "ConstantLR", "MultiplicativeLR",
))  # fmt: skip
"""Their first rate is one to train at; a warm-up from 0 may be stepped over."""


def find(source: Source) -> Iterator[Hit]:
    """Yield each ``scheduler.step()`` of a loop whose updates all come behind it."""
    for advance in source.acts(OpKind.SCHEDULED):
        scheduler = advance.subject
        optimizer = scheduler.of[0] if scheduler.kind is Kind.SCHEDULER and scheduler.of else None
        if optimizer is None or optimizer.kind is not Kind.OPTIMIZER or advance.things or not advance.loops:
            continue
        if scheduler.name.rpartition(".")[2] not in FROM_THE_FIRST_RATE or "last_epoch" in scheduler.options:
            continue
        step = None if MANAGED in scheduler.facts | optimizer.facts else _first_update(source, advance)
        if step is not None and _always(advance, step):
            yield Hit(
                message="The schedule is advanced before the first update of its period: every rate comes too early.",
                node=advance.node,
                related=((step.node, "the update it should follow"),),
                fix=moved_behind(source, advance, step, "Move the advance behind the updates"),
            )


def _first_update(source: Source, advance: Op) -> Op | None:
    """Return the first update, where it comes behind the advance, in the same loop, and nothing unknown before it."""
    scheduler, loop = advance.subject, advance.loops[-1]
    run = [each for each in source.operations if each.root == advance.root]
    step = next((each for each in run if each.act is OpKind.STEPPED and each.subject.may_be(scheduler.of[0])), None)
    if step is None or step.index < advance.index or not step.within(loop):
        return None
    earlier = [each for each in run if each.index < step.index or each.within(loop)]
    made = [each for each in earlier if each.act is OpKind.MADE and each.subject.may_be(scheduler)]
    unclear = any(_unclear(each, advance) for each in earlier)
    return step if made and not unclear and not any(each.within(loop) for each in made) else None


def _unclear(operation: Op, advance: Op) -> bool:
    """Return True where nobody knows what the schedule and its optimizer have gone through afterwards."""
    scheduler = advance.subject
    mine = operation.subject.may_be(scheduler)
    match operation.act:
        case OpKind.ESCAPED:
            return any(each.may_be(given) for each in operation.things for given in (scheduler, scheduler.of[0]))
        case OpKind.STATE_LOADED:
            return mine and not operation.branches
        case _:
            return operation.act is OpKind.SCHEDULED and mine and operation.index < advance.index


def _always(advance: Op, step: Op) -> bool:
    """Return True where the advance comes before the update whatever the conditions around both are."""
    loop = advance.loops[-1]
    mine, theirs = ([each.asks() for each in one.conditions(loop)] for one in (advance, step))
    if len(step.loops) == len(advance.loops) and any(each not in mine for each in theirs):
        return False
    return all(each in theirs or each == (ast.dump(advance.node.func.value), 0) for each in mine)


RULE = Rule(words=("lr_scheduler", "backward(", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.move(Piece.SCHEDULE, before=Piece.UPDATE)


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
    rule=RULE,
    detector=Detector,
    inject=inject,
)
