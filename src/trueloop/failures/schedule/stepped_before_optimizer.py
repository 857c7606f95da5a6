"""``scheduler.step()`` runs before the first ``optimizer.step()``, so every learning rate is used one epoch too early.

What you see
    The first learning rate is never used: training begins with the second value of the schedule. PyTorch warns once.

Why it happens
    A scheduler sets the first learning rate when it is built, and ``step()`` means that an epoch (or an update) is
    over. Until PyTorch 1.0 it meant that an epoch begins, so old code calls it at the start of the loop.

Fix
    Move ``scheduler.step()`` to the end of the epoch, or after ``optimizer.step()`` if it runs once per update.

        for epoch in range(epochs):
            train_one_epoch(model, loader, optimizer)
            scheduler.step()  # at the end of the epoch, not at its start

When this is fine
    - After a restart, the program steps the scheduler several times to reach the current epoch.
    - A GradScaler skips the first updates, or the scheduler is stepped once per accumulated batch.
    - You validate once before training and pass the result to ``ReduceLROnPlateau``.
    - You step a warm-up once to skip the learning rate 0, or the first call is ``step(0)``.

How it is detected
    In a run, the sanitizer reports a line that stepped the scheduler before the first update of its optimizer, with no
    gradients that waited for a step, and ran again after updates. The linter reports a loop that steps a known kind of
    scheduler before the first update in every iteration. It may be intended, so this is a warning.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    pytorch/pytorch issue 20124, https://github.com/pytorch/pytorch/issues/20124
"""

import ast
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.project import Module
from trueloop.analysis.queries.statement_moves import move_after_fix
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardStarted, Ref, SchedulerStepped, StepSkipped, StepTaken

_OLD_TORCH: Final = re.compile(r"\basync *=|loss\w*\.data\[0\]")


@dataclass(slots=True)
class _EarlyStep:
    """The first step of a scheduler, made before any update of its optimizer."""

    location: CodePosition
    pending: int
    """Number of backward passes between the latest step of any optimizer and this step."""
    backwards: int
    """Number of backward passes before this step."""
    rates_before: tuple[float, ...]
    rates_after: tuple[float, ...]
    backwards_at_update: int | None = None
    """Number of backward passes before the first update after this step; None while there is none."""
    update_location: CodePosition | None = None


class Detector(BaseDetector):
    """Compares the first step of each scheduler with the second one."""

    def __init__(self) -> None:
        self._early: weakref.WeakKeyDictionary[Ref, _EarlyStep] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[Ref, list[_EarlyStep]] = weakref.WeakKeyDictionary()
        self._decided: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._skipped: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._pending = 0

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Record the start of the backward pass."""
        self._pending += 1

    def on_step_taken(self, event: StepTaken) -> None:
        """Record the step."""
        self._pending = 0
        for early in self._optimizers.pop(event.optimizer, ()) if self._optimizers else ():
            early.backwards_at_update, early.update_location = event.backward_count, event.location

    def on_step_skipped(self, event: StepSkipped) -> None:
        """Record the skipped step."""
        self._skipped.add(event.optimizer)

    def on_scheduler_stepped(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence when the line of an early step is reached again after updates."""
        scheduler = event.scheduler
        if scheduler in self._decided:
            return None
        early = self._early.pop(scheduler, None)
        if early is None:
            if _is_early(event) and event.optimizer not in self._skipped and event.location is not None:
                early = self._early[scheduler] = _EarlyStep(
                    event.location, self._pending, event.backward_count, event.rates_before, event.rates_after
                )
                self._optimizers.setdefault(event.optimizer, []).append(early)
            else:
                self._decided.add(scheduler)
            return None
        self._decided.add(scheduler)
        repeated = event.optimizer_steps > 0 and event.location == early.location and early.update_location is not None
        is_in_window = early.pending > 0 and early.backwards_at_update != early.backwards
        if not repeated or is_in_window or event.optimizer in self._skipped:
            return None
        effect = (
            f"the learning rate {early.rates_before[0]:.6g} was never used; training began with "
            f"{early.rates_after[0]:.6g}"
            if early.rates_before != early.rates_after
            else "every change of the learning rate comes one epoch or update too early"
        )
        return Evidence(
            message=f"{event.kind} was stepped before the first update of its optimizer: {effect}.",
            location=event.location,
            related=((early.update_location, "the scheduler should step after this update"),)
            if early.update_location
            else (),
            first_update=0,
        )


def _is_early(event: SchedulerStepped) -> bool:
    if event.optimizer_steps or event.last_epoch <= 0 or event.kind == "ReduceLROnPlateau":
        return False
    return bool(event.rates_before) and any(event.rates_before)  # a first rate of 0 may be skipped on purpose


USES_FIRST_RATE: Final = frozenset(
    (
        "StepLR",
        "MultiStepLR",
        "ExponentialLR",
        "CosineAnnealingLR",
        "CosineAnnealingWarmRestarts",
        "OneCycleLR",
        "PolynomialLR",
        "ConstantLR",
        "MultiplicativeLR",
    )
)
"""Schedulers whose first rate is meant for training; a warm-up from 0 may be skipped on purpose."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``scheduler.step()`` in a loop that comes before all updates of the loop."""
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        scheduler = advance.subject
        optimizer = scheduler.sources[0] if scheduler.kind is ValueKind.SCHEDULER and scheduler.sources else None
        if optimizer is None or optimizer.kind is not ValueKind.OPTIMIZER or advance.inputs or not advance.loops:
            continue
        if scheduler.name.rpartition(".")[2] not in USES_FIRST_RATE or "last_epoch" in scheduler.arguments:
            continue
        if _runs_only_on_old_torch(source.module_of(advance.node.lineno)):
            continue  # where the first step() set the first rate
        step = None if MANAGED in scheduler.facts | optimizer.facts else _first_update(source, advance)
        if step is not None and _always_precedes(advance, step):
            yield Hit(
                message=f"`{source.text.segment(advance.node)}` runs before the first update of the loop, so every "
                "learning rate is used too early.",
                node=advance.node,
                related=((step.node, "the scheduler should step after this update"),),
                fix=move_after_fix(source, advance, step, "Move it after the updates"),
            )


def _first_update(source: SourceFile, advance: Op) -> Op | None:
    """Return the first update if it follows the scheduler step in the same loop and no unknown code precedes it."""
    scheduler, loop = advance.subject, advance.loops[-1]
    same_run = [each for each in source.operations if each.entry_point == advance.entry_point]
    step = next(
        (each for each in same_run if each.kind is OpKind.STEP and each.subject.may_alias(scheduler.sources[0])), None
    )
    if step is None or step.index < advance.index or not step.is_inside(loop):
        return None
    earlier = [each for each in same_run if each.index < step.index or each.is_inside(loop)]
    creations = [each for each in earlier if each.kind is OpKind.CREATE and each.subject.may_alias(scheduler)]
    has_unknown = any(_makes_unknown(each, advance) for each in earlier)
    return step if creations and not has_unknown and not any(each.is_inside(loop) for each in creations) else None


def _makes_unknown(operation: Op, advance: Op) -> bool:
    """Return True for operations after which the state of scheduler and optimizer is unknown."""
    scheduler = advance.subject
    is_same_scheduler = operation.subject.may_alias(scheduler)
    match operation.kind:
        case OpKind.ESCAPE:
            return any(
                each.may_alias(value) for each in operation.inputs for value in (scheduler, scheduler.sources[0])
            )
        case OpKind.LOAD_STATE_DICT:
            return is_same_scheduler and not operation.branches
        case _:
            return operation.kind is OpKind.SCHEDULER_STEP and is_same_scheduler and operation.index < advance.index


def _always_precedes(advance: Op, step: Op) -> bool:
    """Return True if the scheduler step precedes the update under all conditions around the two."""
    loop = advance.loops[-1]
    advance_conditions, step_conditions = (
        [each.condition_key() for each in operation.conditions(loop)] for operation in (advance, step)
    )
    if len(step.loops) == len(advance.loops) and any(each not in advance_conditions for each in step_conditions):
        return False
    return all(each in step_conditions or each == (ast.dump(advance.node.func.value), 0) for each in advance_conditions)


def _runs_only_on_old_torch(module: Module) -> bool:
    """Return True for a file with ``x.cuda(async=True)``, or ``loss.data[0]`` of a loss, which is one number.

    Before PyTorch 1.1, the scheduler was stepped first.
    """
    if not module.mentions(_OLD_TORCH):
        return False
    is_async = any(each.arg == "async" for each in module.nodes_of(ast.keyword))
    return is_async or any(_is_item_of_loss(each) for each in module.nodes_of(ast.Subscript))


def _is_item_of_loss(node: Any) -> bool:
    match node:
        case ast.Subscript(value=ast.Attribute(attr="data", value=owner), slice=ast.Constant(value=0)):
            return ast.unparse(owner).lower().rstrip("0123456789_").endswith("loss")
        case _:
            return False


RULE = Rule(required_words=("lr_scheduler", "backward(", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.move(Piece.SCHEDULER_STEP, before=Piece.OPTIMIZER_STEP)


BAD = """
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
"""

FAILURE = Failure(
    code="SCH001",
    title="scheduler.step() is called before optimizer.step()",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "import warnings\n": "",
            'warnings.filterwarnings("ignore")\n': "",
            "    scheduler.step()\n": "",
            'print(epoch, optimizer.param_groups[0]["lr"], loss.item())': (
                'print(epoch, optimizer.param_groups[0]["lr"], loss.item())\n    scheduler.step()'
            ),
        },
    ),
    fix="Call scheduler.step() after optimizer.step(), or at the end of the epoch.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
