"""A schedule and its steps are counted in different units: epochs, batches of one epoch, or updates of the run.

What you see
    A one-cycle schedule never leaves its warm-up, and a cosine schedule hardly changes the learning rate: at the end of
    the run the scheduler has made only one step per epoch. Or the learning rate falls back to almost zero at the start
    of every epoch, because a warm-up counts the batches of the epoch.

Why it happens
    A scheduler does not know whether one ``step()`` means a batch or an epoch. No scheduler raises an error if the run
    ends long before the end of the schedule, or if a ``MultiStepLR(milestones=[30, 60])`` is over after 60 batches.

Fix
    Call ``scheduler.step()`` directly after ``optimizer.step()``, or count the length in epochs.

        scheduler = OneCycleLR(optimizer, 0.1, epochs * len(loader))
        for inputs, targets in loader:
            loss_fn(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()  # here, not once per epoch

When this is fine
    - The length is counted in epochs, as with ``T_max=epochs``, and you step once per epoch.
    - The length is counted in batches, as with ``T_max=epochs * len(loader)``, and you step once per batch.
    - The length is counted in epochs and was planned for a longer run.
    - A warm-up ends early, and the learning rate stays at its highest value.
    - The learning rate falls within each cycle and rises abruptly, as with warm restarts, or rises and falls gradually.

How it is detected
    In a run, the sanitizer reports a ``OneCycleLR`` that made one step in each of two successive epochs, if each epoch
    had exactly ``steps_per_epoch`` updates or batches (at least two). It also reports, as a warning, a learning rate
    that three times, after equal numbers of updates, rises for at least four updates and then falls to less than half
    in a single one. At the end of the program it reports a schedule whose length equals the number of updates but that
    made at most half as many steps (the length of a ``LambdaLR`` is any integer that its function uses), and one that
    was stepped once per update, reached less than half of the highest rate within the first 15 % of at least 60
    updates, and has not changed since.

    The linter reports a scheduler whose length has ``len(loader)`` as a factor, or the length of a ``LambdaLR`` that
    its function uses, such as ``total = epochs * steps_per_epoch``, also through closures, arguments, fields and
    properties, and that is stepped outside the loop with the updates, and the Noam schedule of "Attention is all you
    need", ``min(step ** -0.5, step * warmup ** -1.5)``, if it is stepped outside the loop with the updates. It also
    reports a rate that the program raises by hand in proportion to the counter of ``enumerate`` in every epoch, and a
    scheduler that each batch steps although its length is the number of epochs, its milestones are at most that number
    (10 if it is unknown), or its step size is, perhaps as the default of an option, if the rate then falls to half or
    less; and one that multiplies the rate so often in a single loop over updates, of known length, that less than
    1e-15 of it is left. The length of a ``LambdaLR``, or of a class that sets the learning rate itself, is a number by
    which it divides the number of its steps.

References
    OneCycleLR, https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html
    pytorch/pytorch#65417, "OneCycleLR updating on epoch rather than on step",
    https://github.com/pytorch/pytorch/issues/65417
    ageron/handson-mlp#28, "OneCycleLR scheduler should be called after every batch", in a book's notebook,
    https://github.com/ageron/handson-mlp/issues/28
    sthalles/SimCLR#8: with ``T_max=len(train_loader)`` and a step per epoch "lr will never change",
    https://github.com/sthalles/SimCLR/issues/8
"""

import ast
import linecache
import math
import re
import weakref
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import iterated_loader
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.batch_loops import assigned_in
from trueloop.analysis.queries.class_instances import called_function, enclosing_loops
from trueloop.analysis.queries.command_line_options import number_of
from trueloop.analysis.queries.loops import is_batch_loop
from trueloop.analysis.queries.own_schedules import OwnAdvance, functions_of_lambda, own_advances
from trueloop.analysis.queries.possible_values import enclosing_nodes, known_integer, origins
from trueloop.analysis.queries.statement_moves import move_into_loop_fix
from trueloop.analysis.queries.step_units import counts_batches, counts_updates, schedule_lengths, unit_exponent
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence, SourceLocation
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import LoaderExhausted, Ref, SchedulerStepped, StepTaken, TracingGap, WatchEnded
from trueloop.tracing.trackers.schedule_courses import ScheduleCourse, ScheduleCourses

MIN_PLANNED: Final = 50  # steps; a shorter length may equal the number of updates by chance, except in a OneCycleLR
MIN_UPDATES: Final = 60  # of a run in which a schedule ends early
EARLY: Final = 0.15  # share of the updates
MIN_RISES: Final = 4  # updates in which the rate rises, before it falls
MIN_PERIODS: Final = 3  # rises of equal length
DROP: Final = 0.5  # share of the rate before; less is an abrupt fall
_PI: Final = frozenset(("math", "np", "numpy", "torch", "pi"))
_SETS_RATE: Final = re.compile(r"""\[["']lr["']\]\s*=[^=]""")


class _SchedulerStep(NamedTuple):
    """One ``scheduler.step()``, with the numbers of steps, backward passes and epochs before it."""

    number: int
    steps: int
    backwards: int
    passes: int
    epochs: int
    """Number of successive epochs, up to this step, with exactly one scheduler step each."""


@dataclass(slots=True)
class _WarmUp:
    """The rise of an optimizer's learning rate since it last fell to less than half."""

    start: int
    rate: float
    rises: int = 0
    has_fallen: bool = False
    periods: list[int] = field(default_factory=list[int])
    """Numbers of updates of the rises before this one, each of which ended abruptly."""

    def add(self, update: int, rate: float) -> bool:
        """Add the rate of one update; return True if it is the end of the third rise of equal length."""
        if rate < DROP * self.rate:
            is_warm_up = self.rises >= MIN_RISES and not self.has_fallen
            period = update - self.start
            self.periods = [*self.periods, period] if is_warm_up and {period, *self.periods} == {period} else []
            self.start, self.rises, self.has_fallen = update, 0, False
            self.rate = rate
            return len(self.periods) == MIN_PERIODS
        self.rises += rate > self.rate
        self.has_fallen |= rate < self.rate
        self.rate = rate
        return False


def _describe_units(course: ScheduleCourse) -> str:
    """Return how the units of a schedule and of its steps differ; "" if they may be the same."""
    lengths = () if not course.is_complete else course.numbers if course.planned is None else (course.planned,)
    equal = [each for each in lengths if course.updates in (each, each - course.updates // max(1, course.steps))]
    if equal and 2 <= course.steps <= equal[0] // 2 and (course.kind == "OneCycleLR" or equal[0] >= MIN_PLANNED):
        return (
            f"{course.kind} has a length of {equal[0]} steps, which is the number of updates, but `step()` was called "
            f"{course.steps} times: once per epoch, not once per update."
        )
    is_over = course.latest_change <= EARLY * course.updates and course.rate < DROP * course.highest
    if is_over and course.is_per_update and course.updates >= MIN_UPDATES:
        return (
            f"{course.kind} is stepped once per update and was over after {course.latest_change} of {course.updates} "
            f"updates; since then the learning rate is {course.rate:.3g}, where it was {course.highest:.3g} before. "
            "Its length seems to be counted in epochs."
        )
    return ""


class Detector(BaseDetector):
    """Compares the updates and batches between two scheduler steps with ``steps_per_epoch``, and finds restarts."""

    courses: ScheduleCourses

    def __init__(self) -> None:
        self._warm_ups: weakref.WeakKeyDictionary[Ref, _WarmUp] = weakref.WeakKeyDictionary()
        self._passes = 0
        """Number of passes over a loader with a backward pass."""
        self._last: weakref.WeakKeyDictionary[Ref, _SchedulerStep] = weakref.WeakKeyDictionary()
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard the rates so far."""
        self._warm_ups.clear()

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the update at which the learning rate has fallen back for the third time."""
        rate = max(event.learning_rates, default=0.0)
        warm_up = self._warm_ups.get(event.optimizer)
        if warm_up is None:
            self._warm_ups[event.optimizer] = _WarmUp(event.update, rate)
            return None
        highest = warm_up.rate
        if rate == highest or not warm_up.add(event.update, rate):
            return None
        line = _line_that_sets_rates(event.location)
        return Evidence(
            message=f"The learning rate rises for {warm_up.periods[-1]} updates, to {highest:.3g}, then falls back to "
            f"{rate:.3g}, again and again: its warm-up counts the batches of one epoch, not the updates of the run.",
            location=line or event.location,
            related=((event.location, "updated here"),) if line and event.location else (),
            severity=Severity.WARNING,
            fix="Compute the learning rate from the number of updates since the start of the run.",
        )

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Record the end of the loader."""
        self._passes += event.backwards > 0

    def on_scheduler_stepped(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence at the scheduler step after the second epoch with a single scheduler step."""
        if event.earlier_calls:
            self._warm_ups.pop(event.optimizer, None)  # the rate falls where another scheduler begins
        per_epoch = event.steps_per_epoch or 0
        if per_epoch < 2 or event.scheduler in self._reported:
            return None
        previous = self._last.get(event.scheduler, _SchedulerStep(0, 0, 0, 0, 0))
        steps, batches = event.optimizer_steps - previous.steps, event.backward_count - previous.backwards
        is_next = event.last_epoch == previous.number + 1 and self._passes > previous.passes
        is_full_epoch = is_next and steps > 1 and per_epoch in (steps, batches)
        epochs = previous.epochs + 1 if is_full_epoch else 0
        self._last[event.scheduler] = _SchedulerStep(
            event.last_epoch, event.optimizer_steps, event.backward_count, self._passes, epochs
        )
        if epochs < 2:
            return None
        self._reported.add(event.scheduler)
        return Evidence(
            message=f"{event.kind} is stepped once per epoch, but its length is {event.planned_steps} steps, "
            f"{per_epoch} per epoch: it has made {event.last_epoch} steps after {event.last_epoch} epochs.",
            location=event.location,
            first_update=0,
        )

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each schedule whose length is in another unit than its steps."""
        for scheduler, course in self.courses.by_scheduler.items():
            if scheduler not in self._reported and (message := _describe_units(course)):
                yield Evidence(message=message, location=course.location, first_update=0)


def _line_that_sets_rates(step: CodePosition | None) -> SourceLocation | None:
    """Return the only line that assigns a parameter group's learning rate, in the file of a step."""
    if step is None:
        return None
    path = step.source_location.path
    lines = [number for number, line in enumerate(linecache.getlines(path), 1) if _SETS_RATE.search(line)]
    return SourceLocation(path, lines[0]) if len(lines) == 1 else None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield scheduler steps outside the loop over the loader whose length is a factor of the schedule's length."""
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        scheduler = advance.subject
        is_known = scheduler.kind is ValueKind.SCHEDULER and bool(scheduler.sources) and MANAGED not in scheduler.facts
        if not is_known or not advance.loops or advance.inputs or iterated_loader(advance.loops[-1]) is not None:
            continue
        steps = _updates_in_loop(source, advance)
        loaders = [_inner_loader(each, advance.loops[-1]) for each in steps]
        is_inner = all(len(each.loops) > len(advance.loops) for each in steps)
        is_noam = is_inner and _is_noam(source, scheduler)
        if steps and (
            is_noam
            or all(_has_loader_length(scheduler, each) for each in loaders)
            or (is_inner and counts_updates(source, _lengths_in_source(source, scheduler), _limits(advance.loops[-1])))
        ):
            yield Hit(
                message=f"`{source.text.segment(advance.node)}` runs once per epoch, but the "
                f"{'warm-up of the Noam schedule' if is_noam else 'length of the schedule'} is counted in "
                f"{'updates' if is_noam else 'batches or updates'}.",
                node=advance.node,
                related=((steps[-1].node, "the update"), (scheduler.node, "the scheduler's length")),
                fix=move_into_loop_fix(source, advance, steps[-1], "Step the scheduler after the optimizer"),
            )


def _lengths_in_source(source: SourceFile, scheduler: AbstractValue) -> list[ast.AST]:
    """Return the expressions of a schedule's lengths, and the function of a LambdaLR."""
    lengths = [each.node for each in schedule_lengths(scheduler) if isinstance(each.node, ast.expr)]
    return [*lengths, *(each for each in functions_of_lambda(source, scheduler) if not _converts_epochs(each))]


def _limits(loop: Loop) -> set[str]:
    """Return the names of the number of iterations of a loop over epochs."""
    arguments = getattr(loop.iterable.node, "args", ()) if loop.iterable is not None and _trip_counts(loop) else ()
    return {dotted_name(each) for each in arguments} - {""}


def _converts_epochs(function: Any) -> bool:
    """Return True for a function that multiplies its argument, as in ``epoch * steps_per_epoch``."""
    names = {each.arg for part in nodes_in(function, ast.arguments) for each in part.args}
    products = [(e.left, e.right) for e in nodes_in(function, ast.BinOp) if isinstance(e.op, ast.Mult)]
    return any(
        getattr(one, "id", "") in names and {last_name(e) for e in nodes_in(other, ast.Name, ast.Attribute)} - _PI
        for left, right in products
        for one, other in ((left, right), (right, left))
    )


def _is_noam(source: SourceFile, scheduler: AbstractValue) -> bool:
    """Return True for a LambdaLR whose function, or class, multiplies the step by ``warmup ** -1.5``.

    A function that is passed by its name may count epochs.
    """
    parts = functions_of_lambda(source, scheduler)
    return not any(isinstance(each, ast.FunctionDef) for each in parts[:1]) and any(
        isinstance(each, ast.BinOp) and isinstance(each.op, ast.Pow) and ast.unparse(each.right) == "-1.5"
        for part in parts
        for each in walk(part)
    )


DROPS: Final = {"MultiStepLR": "milestones", "StepLR": "step_size"}
"""Schedules that lower the rate abruptly -> the argument that says when."""
SOON: Final = 10  # batches; a rate that drops within them in a run of unknown length counts epochs
_TRAINS: Final = re.compile(r"backward|loss|loader|model|train|scaler|\bnet\b")
"""Words of a loop that trains; others only show the rates of a schedule."""
LOG_VANISHED: Final = -15  # of a share of the rate at the start, far below what changes a weight in float32
ENDING: Final = frozenset((
    "CosineAnnealingLR", "PolynomialLR", "get_cosine_schedule_with_warmup", "get_linear_schedule_with_warmup",
))  # fmt: skip
"""Schedules that end at a low rate, or rise again."""


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, warm-ups by hand in each epoch, and schedules of epochs that each batch steps."""
    yield from find(source)
    yield from _restarted_warm_ups(source)
    yield from _own_schedules(source)
    yield from _vanishing_rates(source)
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        scheduler = advance.subject
        is_known = scheduler.kind is ValueKind.SCHEDULER and bool(scheduler.sources) and MANAGED not in scheduler.facts
        if not is_known or advance.inputs or len(advance.loops) < 2 or advance.loops[-1].runs_at_most_once():
            continue
        length = _length_in_epochs(source, scheduler, *advance.loops[-2:])
        inside = source.ops_in_loop(advance.loops[-1], OpKind.STEP, root=advance.entry_point)
        is_per_batch = any(
            each.same_iteration_as(advance)
            and each.branches == advance.branches
            and each.subject.may_alias(scheduler.sources[0])
            for each in inside
        )
        is_counted = length and is_per_batch and advance.is_unconditional_in(advance.loops[-1])
        if is_counted and any(_TRAINS.search(ast.unparse(each.node)) for each in advance.loops[-2:]):
            yield Hit(
                message=f"`{source.text.segment(advance.node)}` runs once per batch, but {length}: it ends within the "
                "first batches, or starts again and again.",
                node=advance.node,
                related=((scheduler.node, "the scheduler's length"),),
            )


def _vanishing_rates(source: SourceFile) -> Iterator[Hit]:
    """Yield each step of a schedule in a single loop over updates that multiplies the rate far too often."""
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        scheduler, kind = advance.subject, advance.subject.name.rpartition(".")[2]
        if len(advance.loops) != 1 or kind not in ("StepLR", "ExponentialLR"):
            continue
        loop, arguments = advance.loops[0], scheduler.arguments
        gamma, size = arguments.get("gamma") or arguments.get("2" if kind == "StepLR" else "1"), arguments.get("1")
        size = arguments.get("step_size") or size if kind == "StepLR" else None
        factor = number_of(source, gamma.node) if gamma is not None else 0.1
        count = loop.trip_count() or number_of(source, _epoch_count(loop)) or 0
        every = 1.0 if kind == "ExponentialLR" else number_of(source, size.node) if size is not None else None
        steps = source.ops_in_loop(loop, OpKind.STEP, root=advance.entry_point)
        is_per_update = any(each.same_iteration_as(advance) for each in steps)
        if not factor or not every or not is_per_update or not advance.is_unconditional_in(loop):
            continue
        if 0 < factor < 1 and (count / every) * math.log10(factor) < LOG_VANISHED:
            yield Hit(
                message=f"`{source.text.segment(advance.node)}` runs in each of {count:g} iterations, and every "
                f"{every:g} of them multiply the learning rate by {factor:g}: nothing is left long before the end. The "
                "schedule seems to count epochs.",
                node=advance.node,
                related=((scheduler.node, "the schedule"),),
            )


def _own_schedules(source: SourceFile) -> Iterator[Hit]:
    """Yield the steps of the program's own schedules per batch with a length in epochs, or the other way round."""
    reported = set[int]()
    for advance in own_advances(source):
        operation, loops = advance.operation, advance.operation.loops
        if id(advance.call) in reported or not advance.lengths or not loops:
            continue
        loop = loops[-1]
        if loop.runs_at_most_once():
            continue
        steps = source.ops_in_loop(loop, OpKind.STEP, root=operation.entry_point)
        own = [each for each in steps if any(each.subject.may_alias(e) for e in advance.optimizers)]
        is_per_batch = any(each.same_iteration_as(operation) and each.branches == operation.branches for each in own)
        length = _own_length(source, advance, loops[-2]) if is_per_batch and len(loops) > 1 else None
        if length is not None and operation.is_unconditional_in(loop):
            reported.add(id(advance.call))
            yield Hit(
                message=f"`{ast.unparse(advance.call)}` runs once per batch, but `{ast.unparse(length)}`, the length "
                "of the schedule, is the number of epochs: it ends within the first batches.",
                node=advance.call,
                related=((length, "the schedule's length"),),
            )
        is_inner = bool(own) and all(len(each.loops) > len(loops) for each in own)
        is_own = operation.kind is OpKind.SET_ATTRIBUTE  # `find` reports the others
        if is_inner and is_own and counts_updates(source, advance.lengths, _limits(loop)):
            reported.add(id(advance.call))
            yield Hit(
                message=f"`{ast.unparse(advance.call)}` runs once per epoch, but the length of the schedule is counted "
                "in updates: it hardly changes the learning rate.",
                node=advance.call,
                related=((advance.lengths[0], "the schedule's length"),),
            )


def _own_length(source: SourceFile, advance: OwnAdvance, loop: Loop) -> ast.expr | None:
    """Return the length of a schedule that is the number of iterations of a loop; None if any counts batches."""
    count = _epoch_count(loop)
    epochs = list(origins(source, count)) if count is not None else []
    nodes, paths = {id(each) for each in epochs}, {_path(each) for each in epochs} - {""}
    found: ast.expr | None = None
    for length in advance.lengths:
        values = list(origins(source, length))
        if any(isinstance(each, ast.BinOp) or counts_batches(each) for each in values[1:]):
            return None
        last = values[1:] or values  # an attribute may have the name of another number
        if any(id(each) in nodes or _path(each) in paths for each in last):
            found = found or length
    numbers = [known_integer(source, each) or 0 for each in advance.lengths]
    has_warm_up = 0 not in numbers and len(set(numbers)) > 1  # a warm-up alone may take any number of updates
    is_longest = has_warm_up and max(numbers) == loop.trip_count()
    return found or (advance.lengths[numbers.index(max(numbers))] if is_longest else None)


def _epoch_count(loop: Loop) -> ast.expr | None:
    """Return the number of iterations of a loop over ``range(n)`` or ``range(1, n + 1)``, if it is a variable."""
    call: Any = loop.iterable.node if loop.iterable is not None and _trip_counts(loop) else None
    match getattr(call, "args", ()):
        case [ast.Constant(value=1), ast.BinOp(left=count, op=ast.Add(), right=ast.Constant(value=1))]:
            return count
        case [(ast.Name() | ast.Attribute() | ast.Subscript()) as count]:
            return count
        case [_, (ast.Name() | ast.Attribute() | ast.Subscript()) as count]:
            return count
        case _:
            return None


def _length_in_epochs(source: SourceFile, scheduler: AbstractValue, loop: Loop, inner: Loop) -> str:
    """Return in words that the length of a schedule is the number of epochs, or a part of it; "" if it is not."""
    name, epochs, names = scheduler.name.rpartition(".")[2], _trip_counts(loop), _limits(loop)
    if name in ENDING:
        lengths = [e for e in schedule_lengths(scheduler) if any(_is_part_of(e, one, names) for one in epochs)]
        return f"the schedule is `{ast.unparse(lengths[0].node)}` steps long, the number of epochs" if lengths else ""
    argument = scheduler.arguments.get(DROPS.get(name, "")) or scheduler.arguments.get("1")
    gamma = scheduler.arguments.get("gamma") or scheduler.arguments.get("2")
    is_abrupt = gamma is None or 0 < (number_of(source, gamma.node) or 1) <= DROP
    if name not in DROPS or argument is None or not (is_abrupt or name == "MultiStepLR") or not _is_over_batches(inner):
        return ""
    drops = [argument] if name == "StepLR" else [each for part in argument.alternatives() for each in part.sources]
    count = loop.trip_count() or number_of(source, _epoch_count(loop)) or 0
    are_within = all(1 < (number_of(source, each.node) or 0) <= (count or SOON) for each in drops)
    if not drops or not (are_within or all(any(_is_part_of(each, one, names) for one in epochs) for each in drops)):
        return ""
    text = f"{DROPS[name]}={ast.unparse(argument.node)}" if isinstance(argument.node, ast.expr) else DROPS[name]
    return f"`{text}` counts the {count:g} epochs" if count else f"`{text}` seems to count epochs"


def _is_over_batches(loop: Loop) -> bool:
    """Return True for a loop over batches, unless its loader has all samples in one batch."""
    loader = iterated_loader(loop)
    size = loader.arguments.get("batch_size", loader.arguments.get("1")) if loader is not None else None
    is_single = size is not None and any(
        last_name(each.func) == "len"
        for part in size.ancestors()
        for each in nodes_in(part.node or ast.Pass(), ast.Call)
    )
    return is_batch_loop(loop) and not is_single


def _is_part_of(number: AbstractValue, epochs: AbstractValue, variables: Set[str]) -> bool:
    """Return True for the number of epochs, or a part of it such as ``epochs // 2`` or ``int(0.8 * epochs)``."""
    if _is_same_number(number, epochs):
        return True
    computed = [each for each in number.ancestors() if isinstance(each.node, ast.BinOp | ast.Call)]
    if not isinstance(number.node, ast.expr) or any(counts_batches(each.node) for each in computed):
        return False
    match number.node:
        case ast.Call(func=ast.Name(id="int" | "round")) | ast.BinOp(op=ast.Sub() | ast.Div() | ast.FloorDiv()):
            names = {dotted_name(each) for each in nodes_in(number.node, ast.Name, ast.Attribute)}
            return any(_is_same_number(each, epochs) for each in number.ancestors()) or bool(names & variables)
        case _:
            return False


def _restarted_warm_ups(source: SourceFile) -> Iterator[Hit]:
    """Yield each learning rate that rises with the number of the batch in its epoch, in every epoch."""
    for loop in source.nodes_of(ast.For):
        match loop:
            case ast.For(
                target=ast.Tuple(elts=[ast.Name(id=counter), *_]), iter=ast.Call(func=ast.Name(id="enumerate"))
            ):
                pass
            case _:
                continue
        names = {last_name(each.func) for each in nodes_in(loop, ast.Call)}
        outer = [chain for chain in enclosing_loops(source, loop) if chain]
        if "backward" not in names or not outer or _is_of_epoch(source, loop):
            continue
        for where, number in ((loop, counter), *_called_with(source, loop, counter)):
            for statement in nodes_in(where, ast.Assign):
                if _is_rate(statement) and _is_warm_up(source, where, statement, number):
                    yield Hit(
                        message=f"`{source.text.segment(statement)}` starts the warm-up again in every epoch: "
                        f"`{counter}` counts the batches of one epoch.",
                        node=statement,
                        related=((loop, f"`{counter}` starts at 0 here"),),
                    )


def _called_with(source: SourceFile, loop: ast.For, counter: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Yield each function that a loop calls with its counter and no number of the epoch, and its parameter for it."""
    for call in nodes_in(loop, ast.Call):
        positions = [number for number, each in enumerate(call.args) if getattr(each, "id", "") == counter]
        function = called_function(source, call) if positions else None
        if function is not None and not any("epoch" in ast.unparse(each).lower() for each in call.args):
            names = [each.arg for each in function.args.args]
            yield from ((function, name) for name in names[positions[0] + (names[:1] == ["self"]) :][:1])


def _is_rate(statement: ast.Assign) -> bool:
    target = statement.targets[0]
    return isinstance(target, ast.Subscript) and getattr(target.slice, "value", None) == "lr"


def _is_warm_up(source: SourceFile, where: Any, statement: ast.Assign, counter: str) -> bool:
    """Return True if a rate is proportional to a counter below some number, and does not depend on the epoch."""
    names = {each.id for each in nodes_in(statement.value, ast.Name)}
    values = [statement.value, *(value for name in names for value in assigned_in(where, name))]
    tests = [each.test for each in nodes_in(where, ast.If) if encloses(each, statement)]
    text = " ".join(map(ast.unparse, (*values, *tests)))
    rises = any(
        isinstance(each.op, ast.Div) and any(name.id == counter for name in nodes_in(each.left, ast.Name))
        for value in values
        for each in nodes_in(value, ast.BinOp)
    )
    is_below = any(
        isinstance(each.ops[0], ast.Lt | ast.LtE) and counter in {name.id for name in nodes_in(each.left, ast.Name)}
        for test in tests
        for each in nodes_in(test, ast.Compare)
    )
    return rises and (is_below or "min(" in text) and re.search(r"epoch|\bep\b|global|cos|%|abs|\*\*", text) is None


def _is_of_epoch(source: SourceFile, node: ast.AST) -> bool:
    """Return True if a condition within the outer loop, or an offset of the counter, selects an epoch."""
    kinds = ast.For | ast.While | ast.If
    outer = next((each for each in enclosing_nodes(source, node) if isinstance(each, kinds)), None)
    return isinstance(outer, ast.If) or len(getattr(getattr(node, "iter", None), "args", ())) > 1


def _trip_counts(loop: Loop) -> tuple[AbstractValue, ...]:
    """Return the arguments of ``range`` in an epoch loop; () for other loops, and for a loop with few iterations."""
    call = loop.iterable.node if loop.iterable is not None else None
    is_range = isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("range", "trange")
    count = loop.trip_count()
    return loop.iterable.sources if is_range and loop.iterable is not None and (count is None or count > 1) else ()


def _is_same_number(one: AbstractValue, other: AbstractValue) -> bool:
    """Return True if two numbers are the same variable or item, or equal constants greater than 1."""
    number, first, second = one.constant(), _path(one.node), _path(other.node)
    is_equal = isinstance(number, int) and number > 1 and number == other.constant()
    return one is other or is_equal or (first == second != "")


def _path(node: Any) -> str:
    """Return a variable, attribute or item as text, without ``self``; "" for a computation."""
    is_item = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and bool(dotted_name(node.value))
    return (ast.unparse(node) if is_item else dotted_name(node)).removeprefix("self.")


def _updates_in_loop(source: SourceFile, advance: Op) -> list[Op]:
    """Return the updates in the loop that steps the scheduler; [] if an inner loop also steps it."""
    loop, scheduler = advance.loops[-1], advance.subject
    inside = source.ops_in_loop(loop, OpKind.STEP, OpKind.SCHEDULER_STEP, root=advance.entry_point)
    updates = [each for each in inside if each.kind is OpKind.STEP and each.subject.may_alias(scheduler.sources[0])]
    steps = [each for each in inside if each.kind is OpKind.SCHEDULER_STEP and each.subject.may_alias(scheduler)]
    return updates if all(each.loops[-1].node is loop.node for each in steps) else []


def _inner_loader(step: Op, loop: Loop) -> AbstractValue | None:
    """Return the loader of the single loop between a loop and an update inside it."""
    inner = step.loops[[each.node for each in step.loops].index(loop.node) + 1 :]
    return iterated_loader(inner[0]) if len(inner) == 1 else None


def _has_loader_length(scheduler: AbstractValue, loader: AbstractValue | None) -> bool:
    """Return True if a length of the schedule has the loader's length as a factor."""
    for number in schedule_lengths(scheduler) if loader is not None else ():
        powers = [unit_exponent(number, each) for each in number.ancestors() if _is_length(each, loader)]
        if 1 in powers and all(each in (0, 1) for each in powers):
            return True
    return False


def _is_length(number: AbstractValue, loader: AbstractValue | None) -> bool:
    call = number.node
    is_len = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "len"
    return is_len and loader is not None and any(each.may_alias(loader) for each in number.sources)


RULE = Rule(required_words=("len(|range(", "backward(", ".step(", "LR|WarmRestarts|get_|param_groups"), find=find_all)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
epochs = 4
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, epochs=epochs, steps_per_epoch=len(loader))
for epoch in range(epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    scheduler.step()
    print(epoch, scheduler.get_last_lr())
"""

FAILURE = Failure(
    code="SCH007",
    title="Schedule and its steps are counted in different units",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"scheduler.step()": "    scheduler.step()"}),
    fix="Call scheduler.step() after each optimizer.step(), or count its length in epochs.",
    rule=RULE,
    detector=Detector,
)
