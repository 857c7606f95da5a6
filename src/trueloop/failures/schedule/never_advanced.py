"""A schedule is built over an optimizer, and nothing ever advances it.

What you see
    The learning rate that is logged is the same from the first epoch to the last. A warm-up never ends: the whole run
    goes on at a small part of the rate that was meant.

Why it happens
    A scheduler is an object like any other: it sets the first rate when it is built, and then waits for ``step()``.
    torch warns where it is advanced before the optimizer, not where it is not advanced at all.

Fix
    Call ``scheduler.step()`` behind ``optimizer.step()``, or at the end of each epoch, in the unit its length is
    counted in; or take the scheduler out.

When this is fine
    A ``step()`` on a condition that a short run does not reach, once in ten epochs or after a warm-up; parts of a
    ``SequentialLR``; schedules that a library advances, or that only tell a rate which the program sets itself;
    one built with ``last_epoch`` to set the rate of that epoch; a notebook, whose next cell may advance it. A run is
    accused where an optimizer was stepped through two whole passes over data, by a loop of the program's own, and none
    of the program's files has a ``step()`` that may be of a schedule. In the text it shows where the name it is given
    is never used again, but to be read, saved or handed to a function that does not use it either, and no other one of
    the same optimizer is advanced. Who keeps an unused schedule on purpose would be named too: hence a warning.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    namiyousef/argument-mining#53, "Training loop does not make use of scheduler",
    https://github.com/namiyousef/argument-mining/issues/53
    hearai/hearai#94, "rollback to scheduler step added to training": it had got lost,
    https://github.com/hearai/hearai/pull/94
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import dotted
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, LoaderExhausted, ScheduleIdle
from trueloop.tracing.program_text.schedule_calls import sets_rates

PASSES: Final = 2  # after one, an advance at the end of each epoch may still be to come


class Detector(failure.Detector):
    """Counts passes over data, and hears of schedules that nothing has advanced at the end."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LoaderExhausted, ScheduleIdle)

    def __init__(self) -> None:
        self._began: deque[int] = deque(maxlen=PASSES)
        """Backwards before each of the latest passes that trained and do not overlap."""
        self._ended = 0
        """Backwards before the end of the latest one."""

    def observe(self, event: LoaderExhausted | ScheduleIdle) -> Evidence | None:
        """Return evidence for each such schedule, at the end."""
        if isinstance(event, LoaderExhausted):
            began = event.micro - event.batches_with_backward
            if event.batches_with_backward and began >= self._ended:
                self._began.append(began)
                self._ended = event.micro
            return None
        if len(self._began) < PASSES or self._began[0] < event.made_micro:
            return None
        return Evidence(
            message=f"This {event.kind} was never advanced, through {format_count(event.steps, 'update')} of its optimizer: "
            "the learning rate stayed where it began.",
            location=event.place,
        )


READ: Final = frozenset(("get_last_lr", "state_dict", "load_state_dict"))
"""Attributes of a schedule that may be used without advancing it."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find(source: Source) -> Iterator[Hit]:
    """Yield each schedule over an optimizer that is stepped in a loop, whose name is used for nothing."""
    for made in source.acts(OpKind.MADE):
        scheduler = made.subject
        optimizer = scheduler.of[0] if scheduler.kind is Kind.SCHEDULER and scheduler.of else None
        if optimizer is None or optimizer.kind is not Kind.OPTIMIZER or "last_epoch" in scheduler.options:
            continue
        run = source.run_of(made)
        others = any(_of(each, optimizer) for each in run if each.act is OpKind.SCHEDULED)
        if others or not _unused(source, made) or not any(_trains(made, each) for each in run):
            continue
        if not sets_rates(source.tree):
            yield Hit(
                message="Nothing advances this schedule: the learning rate stays where it begins.", node=made.node
            )


def _of(advance: Op, optimizer: AbstractValue) -> bool:
    return any(each.may_be(optimizer) for each in advance.subject.of)


def _trains(made: Op, step: Op) -> bool:
    """Return True for a step of the schedule's optimizer, behind it in a loop that does not make it anew."""
    deeper = len(step.loops) > len(made.loops) and all(step.within(each) for each in made.loops)
    return step.act is OpKind.STEPPED and step.index > made.index and deeper and step.subject.may_be(made.subject.of[0])


def _unused(source: Source, made: Op) -> bool:
    """Return True where the only name of a new schedule is used for nothing that advances it."""
    statement = made.statement
    if isinstance(statement, ast.Expr):
        return statement.value is made.node
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is not made.node:
        return False
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(statement, ast.Assign) and len(statement.targets) > 1:
        return False
    if isinstance(target, ast.Name):
        return _idle(source, made.function or source.tree, target.id, frozenset())
    return isinstance(target, ast.Attribute) and _held_idle(source, made, target)


PLAIN: Final = frozenset(("object", "Module", "Dataset", "Protocol", "ABC", "NamedTuple", "Enum"))
"""Bases that use no schedule of the classes below them."""


def _held_idle(source: Source, made: Op, target: ast.Attribute) -> bool:
    """Return True for an attribute that this file, which is the whole program, uses for nothing but to be read from."""
    nodes, word = source.nodes, target.attr
    owners = [each.subject for each in source.acts(OpKind.BOUND) if each.node is target]
    if dotted(target.value) != "self" or made.root or any(source.handed_out(o, source.operations) for o in owners):
        return False
    known = {*PLAIN, *(each.name for each in nodes if isinstance(each, ast.ClassDef))}
    bases = [base for each in nodes if isinstance(each, ast.ClassDef) for base in each.bases]
    by_name = any(isinstance(each, ast.Constant) and each.value == word for each in nodes)
    if by_name or any(dotted(base).rpartition(".")[2] not in known for base in bases):
        return False
    loads = (n for n in nodes if isinstance(n, ast.Attribute) and n.attr == word and isinstance(n.ctx, ast.Load))
    return {id(each) for each in loads} <= _read_from(nodes)


def _read_from(nodes: list[ast.AST]) -> set[int]:
    return {id(each.value) for each in nodes if isinstance(each, ast.Attribute) and each.attr in READ}


def _idle(source: Source, scope: Any, name: str, above: frozenset[str]) -> bool:
    """Return True where a name is loaded in a scope to be read from only, or for a function that does no more."""
    nodes = list(ast.walk(scope))
    used = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    outside = any(isinstance(each, ast.Global | ast.Nonlocal) and name in each.names for each in nodes)
    if outside or any(each.id in ("locals", "globals", "exec", "eval") for each in used):
        return False
    open_ = {id(each) for each in used if each.id == name} - _read_from(nodes)
    if any(isinstance(each, ast.Attribute) and id(each.value) in open_ for each in nodes):
        return False
    for call in (each for each in nodes if isinstance(each, ast.Call) and open_):
        if any(id(given) in open_ for given in (*call.args, *(each.value for each in call.keywords))):
            open_ -= {
                id(given)
                for given, function, word in _handed(source, call)
                if function.name not in above and _idle(source, function, word, above | {function.name})
            }
    return not open_


def _handed(source: Source, call: ast.Call) -> Iterator[tuple[ast.expr, Function, str]]:
    """Yield the arguments of a call of a function of this file, with it and the names it gives them."""
    defined = [each for each in source.nodes if isinstance(each, Function) and each.name == dotted(call.func)]
    if len(defined) != 1 or any(isinstance(each, ast.Starred) for each in call.args):
        return
    function, places = defined[0], [each.arg for each in (*defined[0].args.posonlyargs, *defined[0].args.args)]
    if function.decorator_list or function.args.vararg or function.args.kwarg:
        return
    yield from ((given, function, word) for given, word in zip(call.args, places, strict=False))
    yield from ((each.value, function, each.arg) for each in call.keywords if each.arg)


RULE = Rule(words=("lr_scheduler|get_linear_schedule|get_cosine_schedule", "backward(", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.leave_out(Piece.SCHEDULE)


FAILURE = Failure(
    code="SCH006",
    title="A schedule is never advanced",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
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
""",
    good="""
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
    scheduler.step()
""",
    fix="Call scheduler.step() behind optimizer.step() or at the end of each epoch, in the unit the schedule counts.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
