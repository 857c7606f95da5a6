"""A scheduler is built, but ``scheduler.step()`` is never called.

What you see
    The learning rate is the same from the first epoch to the last. If the schedule starts with a warm-up, the full run
    uses only a small part of the intended learning rate.

Why it happens
    A scheduler changes the learning rate only in ``step()``. PyTorch does not warn if ``step()`` is never called.

Fix
    Call ``scheduler.step()`` at the end of each epoch if the scheduler's length is counted in epochs, or after each
    ``optimizer.step()`` if it is counted in updates.

        for epoch in range(epochs):
            train_one_epoch(model, loader, optimizer)
            scheduler.step()

When this is fine
    - The step has a condition that a short run does not reach, such as every ten epochs.
    - The scheduler is part of a ``SequentialLR``, or a library steps it.
    - You pass ``last_epoch`` to the scheduler only to set the learning rate of this epoch.
    - You use the scheduler only to compute learning rates that your program sets itself.

How it is detected
    In a run, the sanitizer reports a scheduler whose optimizer made steps in two full epochs, or 32 steps in a program
    without a loader, if no file of the program contains a call of ``step()`` that may belong to the scheduler, or if
    all such calls have conditions that compare several texts, as in ``if interval == "batch"``, or if the scheduler of
    another optimizer, which made no steps, was stepped three times after steps of this one. It does not check
    notebooks, because the next cell may contain the call. The linter reports a scheduler that is only read, saved or
    passed to functions that do not step it, if no other scheduler of the optimizer is stepped, and a loop that
    steps the schedulers of a list into which nothing is put. It may be intended, so
    this is a warning.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    namiyousef/argument-mining#53, "Training loop does not make use of scheduler",
    https://github.com/namiyousef/argument-mining/issues/53
    hearai/hearai#94, "rollback to scheduler step added to training": it had got lost,
    https://github.com/hearai/hearai/pull/94
"""

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.never_filled import never_filled
from trueloop.analysis.queries.optimizer_settings import sets_in_groups
from trueloop.analysis.queries.uncalled_methods import uncalled
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, LoaderExhausted

MIN_UPDATES: Final = 32  # of a program without a loader
MIN_EPOCHS: Final = 2  # after one epoch, the scheduler may still step at its end


@dataclass(slots=True, kw_only=True, eq=False)
class SchedulerNeverStepped(Event):
    """RARE. The watch ended, a scheduler was never stepped, and no line of the program could step it."""

    kind: str
    """Class name of the scheduler: "CosineAnnealingLR"."""
    optimizer_steps: int = 0
    """Number of steps of its optimizer since the scheduler was created."""
    created_backward_count: int
    """Number of backward passes before the scheduler was created."""
    condition: str | None = ""
    """A condition of the calls of ``step()`` that compares texts; "" = there is no call."""
    instead_at: CodePosition | None = None
    """The line that steps the scheduler of another optimizer, which makes no steps meanwhile."""


class Detector(BaseDetector):
    """Counts training epochs, and reports schedulers without a step at the end of the run."""

    def __init__(self) -> None:
        self._starts: deque[int] = deque(maxlen=MIN_EPOCHS)
        """Number of backward passes before the start of each of the latest training epochs that do not overlap."""
        self._ended = 0
        """Number of backward passes before the end of the latest epoch."""

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Record the end of the loader."""
        start = event.backward_count - event.backwards
        if event.backwards and start >= self._ended:
            self._starts.append(start)
            self._ended = event.backward_count

    def on_scheduler_never_stepped(self, event: SchedulerNeverStepped) -> Evidence | None:
        """Return evidence for each scheduler that was never stepped, at the end of the run."""
        if not self._ended and event.optimizer_steps < MIN_UPDATES:
            return None
        if self._ended and (len(self._starts) < MIN_EPOCHS or self._starts[0] < event.created_backward_count):
            return None
        instead = event.instead_at
        reason = f": the condition `{event.condition}` was never met" if event.condition else ""
        reason = (
            ": what is stepped is the scheduler of another optimizer, which makes no updates" if instead else reason
        )
        return Evidence(
            message=f"The `step()` of this {event.kind} was never called in "
            f"{format_count(event.optimizer_steps, 'update')} of its optimizer, so the learning rate did not change"
            f"{reason}.",
            location=event.location,
            related=((instead, "the other scheduler is stepped here"),) if instead else (),
        )


READ_ATTRIBUTES: Final = frozenset(("get_last_lr", "state_dict", "load_state_dict"))
"""Attributes of a scheduler that may be used without stepping it."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each unused scheduler of an optimizer that is stepped in a loop."""
    for creation in source.ops(OpKind.CREATE):
        scheduler = creation.subject
        optimizer = scheduler.sources[0] if scheduler.kind is ValueKind.SCHEDULER and scheduler.sources else None
        if optimizer is None or optimizer.kind is not ValueKind.OPTIMIZER or "last_epoch" in scheduler.arguments:
            continue
        run = source.ops_of_run(creation)
        is_stepped = any(_is_step_of(each, optimizer) for each in run if each.kind is OpKind.SCHEDULER_STEP)
        if is_stepped or not _is_unused(source, creation) or not any(_trains_after(creation, each) for each in run):
            continue
        if not sets_in_groups(source.tree, "lr", frozenset()):
            yield Hit(
                message="The `step()` of this scheduler is never called, so the learning rate does not change.",
                node=creation.node,
            )


def _is_step_of(advance: Op, optimizer: AbstractValue) -> bool:
    return any(each.may_alias(optimizer) for each in advance.subject.sources)


def _trains_after(creation: Op, step: Op) -> bool:
    """Return True for a later step of the scheduler's optimizer, in a loop that does not build the scheduler."""
    in_loop = len(step.loops) > len(creation.loops) and all(step.is_inside(each) for each in creation.loops)
    return (
        step.kind is OpKind.STEP
        and step.index > creation.index
        and in_loop
        and step.subject.may_alias(creation.subject.sources[0])
    )


def _is_unused(source: SourceFile, creation: Op) -> bool:
    """Return True if the new scheduler has one name and no use of this name can step it."""
    statement = creation.statement
    if isinstance(statement, ast.Expr):
        return statement.value is creation.node
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is not creation.node:
        return False
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(statement, ast.Assign) and len(statement.targets) > 1:
        return False
    if isinstance(target, ast.Name):
        return _is_only_read(source, creation.function or source.tree, target.id, frozenset())
    return isinstance(target, ast.Attribute) and _is_attribute_only_read(source, creation, target)


PLAIN_BASES: Final = frozenset(("object", "Module", "Dataset", "Protocol", "ABC", "NamedTuple", "Enum"))
"""Base classes that do not use a scheduler of their subclasses."""


def _is_attribute_only_read(source: SourceFile, creation: Op, target: ast.Attribute) -> bool:
    """Return True for an attribute whose value this file, if it is the full program, only reads."""
    nodes, name = source.nodes, target.attr
    owners = [each.subject for each in source.ops(OpKind.SET_ATTRIBUTE) if each.node is target]
    if (
        dotted_name(target.value) != "self"
        or creation.entry_point
        or any(source.escapes(owner, source.operations) for owner in owners)
    ):
        return False
    plain_names = {*PLAIN_BASES, *(each.name for each in nodes if isinstance(each, ast.ClassDef))}
    bases = [base for each in nodes if isinstance(each, ast.ClassDef) for base in each.bases]
    by_name = any(isinstance(each, ast.Constant) and each.value == name for each in nodes)
    if by_name or any(dotted_name(base).rpartition(".")[2] not in plain_names for base in bases):
        return False
    loads = (n for n in nodes if isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Load))
    return {id(each) for each in loads} <= _reads_of(nodes)


def _reads_of(nodes: list[ast.AST]) -> set[int]:
    return {id(each.value) for each in nodes if isinstance(each, ast.Attribute) and each.attr in READ_ATTRIBUTES}


def _is_only_read(source: SourceFile, scope: Any, name: str, callers: frozenset[str]) -> bool:
    """Return True if a scope only reads a scheduler's attributes, or passes it to functions that only do this."""
    nodes = list(walk(scope))
    loads = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    is_shared = any(isinstance(each, ast.Global | ast.Nonlocal) and name in each.names for each in nodes)
    if is_shared or any(each.id in ("locals", "globals", "exec", "eval") for each in loads):
        return False
    other_uses = {id(each) for each in loads if each.id == name} - _reads_of(nodes)
    if any(isinstance(each, ast.Attribute) and id(each.value) in other_uses for each in nodes):
        return False
    for call in (each for each in nodes if isinstance(each, ast.Call) and other_uses):
        if any(id(argument) in other_uses for argument in (*call.args, *(each.value for each in call.keywords))):
            other_uses -= {
                id(argument)
                for argument, function, inner in _match_arguments(source, call)
                if function.name not in callers and _is_only_read(source, function, inner, callers | {function.name})
            }
    return not other_uses


def _match_arguments(source: SourceFile, call: ast.Call) -> Iterator[tuple[ast.expr, Function, str]]:
    """Yield each argument of a call to a function of this file, with the function and the parameter's name."""
    functions = [each for each in source.nodes if isinstance(each, Function) and each.name == dotted_name(call.func)]
    if len(functions) != 1 or any(isinstance(each, ast.Starred) for each in call.args):
        return
    function, names = functions[0], [each.arg for each in (*functions[0].args.posonlyargs, *functions[0].args.args)]
    if function.decorator_list or function.args.vararg or function.args.kwarg:
        return
    yield from ((argument, function, parameter) for argument, parameter in zip(call.args, names, strict=False))
    yield from ((each.value, function, each.arg) for each in call.keywords if each.arg)


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, each ``scheduler.step`` without a call, and the steps of no scheduler at all."""
    yield from find(source)
    yield from _steps_of_none(source)
    schedulers = {dotted_name(target) for target in _scheduler_targets(source)}
    for each in uncalled(source, "step", "the learning rate does not change"):
        name = ast.unparse(each.node).removesuffix(".step")
        if name in schedulers or "sched" in name.lower():
            yield each


def _steps_of_none(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop that steps all schedulers of a list that stays empty."""
    for loop in source.nodes_of(ast.For):
        stepped = {dotted_name(call.func) for call in nodes_in(loop, ast.Call)}
        is_named = "sched" in last_name(loop.iter).lower() and isinstance(loop.iter, ast.Name | ast.Attribute)
        if is_named and f"{dotted_name(loop.target)}.step" in stepped:
            created = never_filled(source, loop.iter)
            if created is not None:
                yield Hit(
                    message=f"`{ast.unparse(loop.iter)}` is empty: no scheduler is ever put into it, so this loop "
                    "steps none, and the learning rate does not change.",
                    node=loop.iter,
                    related=((created, "set to an empty list here"),),
                )


def _scheduler_targets(source: SourceFile) -> Iterator[ast.expr]:
    for creation in source.ops(OpKind.CREATE):
        if creation.subject.kind is ValueKind.SCHEDULER and isinstance(creation.statement, ast.Assign):
            yield from creation.statement.targets


RULE = Rule(
    required_words=("lr_scheduler|get_linear_schedule|get_cosine_schedule|sched", "backward(|.step", ".step"),
    find=find_all,
)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    epochs = MIN_EPOCHS + 1
    reason = f"A schedule that is never advanced is found after {MIN_EPOCHS} full epochs."
    loop.require(loop.settings.get("epochs", epochs) >= epochs, reason, epochs=epochs)
    loop.leave_out(Piece.SCHEDULER_STEP)


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
for epoch in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    print(epoch, scheduler.get_last_lr())
"""

FAILURE = Failure(
    code="SCH006",
    title="scheduler.step() is never called",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"print(epoch, scheduler.get_last_lr())": "print(epoch, scheduler.get_last_lr())\n    scheduler.step()"}
    ),
    fix="Call scheduler.step() after each optimizer.step(), or at the end of each epoch if its length is in epochs.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
