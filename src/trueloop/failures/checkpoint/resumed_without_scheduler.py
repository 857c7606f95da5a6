"""Training is resumed with a learning rate schedule that starts again.

What you see
    After a restart the learning rate jumps back to its first value, and the loss with it. The warm-up runs a second
    time, or the rate is still high when the run ends.

Why it happens
    A scheduler counts its own steps. A new one starts at 0: its next ``step()`` sets the rate of that step, whatever
    rate was loaded with the optimizer.

Fix
    Load the scheduler's state together with that of the optimizer, after both were built.

        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])  # missing

When this is fine
    - The scheduler is built with ``last_epoch``, or stepped as often as before, which gives the same rates.
    - You start a new schedule on purpose, as for fine-tuning: then set the rate after the optimizer's state was loaded,
      or do not load it, since it holds the old rate.

How it is detected
    In a run, the sanitizer reports a checkpoint with states of an optimizer and a scheduler of which only the first was
    loaded, if the scheduler's steps are then counted from the start, and a checkpoint of an optimizer whose learning
    rate a scheduler had lowered, but without the scheduler's state, if a scheduler with the same initial rate then
    makes its first step. The linter reports a program that steps a scheduler and loads its optimizer's state, but
    not the scheduler's, even if no file contains the latter. It must know the object of each ``load_state_dict``; a
    program that contains ``last_epoch``, or passes an epoch to ``scheduler.step``, is not reported, nor a new stage,
    whose learning rate is set after the load or differs from the one that was saved. It also reports a rate in a
    variable, such as ``state["lr"] *= 0.1`` at certain epochs, where a loop begins at the epoch of the checkpoint.

References
    PyTorch tutorial "Saving & Loading a General Checkpoint for Inference and/or Resuming Training",
    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    torch.optim, how to adjust the learning rate,
    https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.captured_states import loads_without_scheduler
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.queries.resumed_loops import resumed_loops
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.checkpoint.resumed_without_optimizer import GOOD
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import CheckpointRead, Ref, SchedulerStepped, StateLoaded, StepTaken

_WITHOUT_COUNT: Final = frozenset(("ExponentialLR", "MultiplicativeLR", "ReduceLROnPlateau"))
"""Schedulers whose next rate follows from the rate before."""
_EPOCH: Final = re.compile(r"epoch|\bep\b")
_RATE: Final = re.compile(r"(^|_|\W)(lr|learning_?rate)($|_|\W)", re.IGNORECASE)
_STATE: Final = re.compile(r"sched\w*(\[\w+\])?\.(load_)?state_dict|step\(\w*epoch")


class _Resumed(NamedTuple):
    """An optimizer whose state was loaded, while the scheduler's was not."""

    optimizer: Ref
    location: CodePosition | None
    file: CheckpointRead
    rates: tuple[float, float] | None
    """If the file holds no state of a scheduler: the initial learning rate, and the loaded one."""


class Detector(BaseDetector):
    """Compares the steps of a scheduler with those in the checkpoint that its optimizer was loaded from."""

    activated_by = (CheckpointRead,)

    def __init__(self) -> None:
        self._file: CheckpointRead | None = None
        """The newest file with the state of an optimizer."""
        self._resumed: _Resumed | None = None
        self._step: SchedulerStepped | None = None
        """The latest step of the scheduler since the load."""

    def on_checkpoint_read(self, event: CheckpointRead) -> None:
        """Record a file with the state of an optimizer."""
        self._file = event if event.holds_optimizer else None

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record what was loaded."""
        if event.what == "scheduler":
            self._file = self._resumed = None
        elif event.what == "optimizer" and self._file is not None:
            rates = None if self._file.scheduler_steps else event.rates
            is_started = self._file.scheduler_steps > 1 or (rates is not None and rates[1] < rates[0])
            if is_started and (rates is None or event.file is self._file.file):
                self._resumed, self._step = _Resumed(event.target, event.location, self._file, rates), None

    def on_scheduler_stepped(self, event: SchedulerStepped) -> None:
        """Record the number of steps."""
        if self._resumed is not None and event.optimizer is self._resumed.optimizer:
            self._step = event

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the first update with the rate of a schedule that has started again."""
        resumed, step = self._resumed, self._step
        if resumed is None or step is None or event.optimizer is not resumed.optimizer:
            return None
        self._resumed = self._step = None
        set_to = f" and set the learning rate to {format_float(max(step.rates_after))}" if step.rates_after else ""
        related = ((step.location, "the scheduler steps here"),) if step.location is not None else ()
        if resumed.rates is not None:
            first, loaded = resumed.rates
            if step.last_epoch > 1 or step.kind in _WITHOUT_COUNT or step.base_rate != first:
                return None
            return Evidence(
                message=f"The optimizer's state in {resumed.file.file.name} was loaded, with a learning rate of "
                f"{format_float(loaded)} that a schedule had reached from {format_float(first)}, but the file holds no "
                f"state of the scheduler: {step.kind} begins again{set_to}.",
                location=resumed.location,
                related=related,
            )
        saved = resumed.file.scheduler_steps
        if step.last_epoch >= saved:
            return None
        return Evidence(
            message=f"The optimizer's state in {resumed.file.file.name} was loaded, but the scheduler's state in the "
            f"same file was not: {saved} steps were saved, but {step.kind} has counted {step.last_epoch}{set_to}.",
            location=resumed.location,
            related=related,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each load of an optimizer's state in a program that does not load the scheduler's."""
    if "last_epoch" in source.text.source or any(map(_only_steps, source.nodes)):
        return
    for load, save, is_saved in loads_without_scheduler(source):
        if not is_saved and _STATE.search(source.text.source):
            continue
        which = "the scheduler's state, which is saved too, is not"
        which = which if is_saved else "the scheduler's is neither saved nor loaded"
        yield Hit(
            message=f"The optimizer's state is loaded, but {which}: the schedule starts again.",
            node=load.node,
            related=((save.node, "saved here"),),
        )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and rates of the program's own schedules that begin again in a resumed run."""
    yield from find(source)
    reported: set[int] = set()
    for loop, _, load in resumed_loops(source):
        for node in source.nodes_of(ast.AugAssign, ast.Assign):
            rate = _multiplied(node)
            if rate is None or id(node) in reported or not _is_at_epochs(source, node):
                continue
            if _is_kept(source, node, rate, loop) and not _is_restored(source, node, rate, load):
                reported.add(id(node))
                yield Hit(
                    message=f"`{ast.unparse(node)}` lowers a rate that no checkpoint holds: in a resumed run it begins "
                    "at its first value, without the steps of the epochs before.",
                    node=node,
                    related=((load, "resumed here"),),
                )


def _multiplied(node: ast.AugAssign | ast.Assign) -> ast.expr | None:
    """Return the variable of ``lr *= 0.1`` and ``lr = lr * 0.1``, if it is called a learning rate; else None."""
    match node:
        case ast.AugAssign(target=target, op=ast.Mult() | ast.Div()):
            rate = target
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Mult() | ast.Div())):
            rate = target if ast.unparse(left) == ast.unparse(target) else None
        case _:
            rate = None
    is_rate = rate is not None and _RATE.search(ast.unparse(rate)) and "group" not in ast.unparse(rate)
    return rate if is_rate else None


def _is_at_epochs(source: SourceFile, node: ast.AST) -> bool:
    """Return True for a node that runs at certain epochs only: ``if epoch in milestones``, ``if epoch % 30 == 0``."""
    tests = [each.test for each in enclosing_nodes(source, node) if isinstance(each, ast.If)]
    return any(
        isinstance(each.ops[0], ast.In | ast.Eq) and _EPOCH.search(ast.unparse(each.left))
        for test in tests
        for each in nodes_in(test, ast.Compare)
    )


def _is_kept(source: SourceFile, node: ast.AST, rate: ast.expr, loop: ast.For | ast.While) -> bool:
    """Return True for a rate that an optimizer gets and that keeps its value until the next epoch."""
    function, text = function_of(source, node), ast.unparse(rate)
    root = rate
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    name = last_name(root)
    assigned = {ast.unparse(each) for each, _ in single_assignments(function) if each is not rate}
    is_global = any(name in each.names for each in nodes_in(function, ast.Global))
    is_lasting = is_global or (root is not rate and not {name, text} & assigned)
    is_given = any(
        isinstance(target, ast.Subscript) and ast.unparse(target.slice) == "'lr'" and text in ast.unparse(value)
        for target, value in single_assignments(function)
    )
    begins_anew = any(
        text == ast.unparse(target) and text not in map(ast.unparse, nodes_in(value, ast.Name, ast.Attribute))
        for target, value in single_assignments(loop)
    )
    return is_given and ((encloses(loop, node) and not begins_anew) or is_lasting)


def _is_restored(source: SourceFile, node: ast.AST, rate: ast.expr, load: ast.Call) -> bool:
    """Return True if the program assigns a rate, or what holds it, after a load, or repeats the steps before."""
    holders = {ast.unparse(each) for each in nodes_in(rate, ast.expr)}
    called = getattr(function_of(source, node), "name", None)
    read = {each.id for each in nodes_in(load.args[0], ast.Name)} | {"torch"}
    for target, value in single_assignments(function_of(source, load)):
        is_read = bool({each.id for each in nodes_in(value, ast.Name)} & read) or "param_groups" in ast.unparse(value)
        if ast.unparse(target) in holders and is_read:
            return True
    for each in nodes_in(function_of(source, load), ast.For):  # for epoch in range(start): adjust(optimizer, epoch)
        is_short = isinstance(each.iter, ast.Call) and len(each.iter.args) == 1
        if is_short and any(last_name(call.func) == called for call in nodes_in(each, ast.Call)):
            return True
    return False


def _only_steps(node: ast.AST) -> bool:
    """Return True for a loop that steps a scheduler as often as before."""
    match node:
        case ast.For(body=[ast.Expr(value=ast.Call(func=ast.Attribute(attr="step")))]):
            return True
        case _:
            return False


RULE = Rule(required_words=("load_state_dict", "torch", "save", "sched|param_group"), find=find_all)

FAILURE = Failure(
    code="CKP011",
    title="Training is resumed without the scheduler's state",
    severity=Severity.WARNING,
    bad=changed(GOOD, {'scheduler.load_state_dict(checkpoint["scheduler"])\n': ""}),
    good=GOOD,
    fix='Load the state of the scheduler too: scheduler.load_state_dict(checkpoint["scheduler"]).',
    rule=RULE,
    detector=Detector,
)
