"""``optimizer.step()`` is never called, although ``backward()`` computes gradients again and again.

What you see
    The loss stays near its first value and varies only from batch to batch. If there are several optimizers, one part
    does not learn, such as the discriminator of a GAN.

Why it happens
    PyTorch does not require a step after ``backward()``, because gradients have other uses. ``optimizer.step`` without
    parentheses is a valid expression that does nothing.

Fix
    Call ``step()``, with parentheses, after ``backward()``.

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

When this is fine
    - The step follows later: after many accumulated batches, in a later stage, or when a GradScaler stops skipping.
    - You only read the gradients, for saliency maps, adversarial examples, Fisher information or their norms.
    - Your own code, a library, a hook or another optimizer updates the weights.
    - You build the optimizer only to load a checkpoint.

How it is detected
    In a run, the sanitizer looks for eight backward passes that reach parameters of one optimizer only, without any
    change of these parameters. It reports the optimizer if the source code neither calls its ``step()`` nor uses
    gradients itself. If other optimizers step, the source code must also call this optimizer's ``zero_grad()`` or
    contain its ``step`` without parentheses; otherwise the check waits for the end of the run. Interactive sessions and
    notebooks are not checked, because the next line may step. The linter applies the same conditions to one file. It
    also reports a backward pass between two ``zero_grad()`` of the same optimizer, next to another one that steps.

References
    Optimizing Model Parameters, https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    zhaoyuzhi/deepfillv2#6, "Discriminator parameter not update?": "you do not include optimizer.step in trainer.py",
    https://github.com/zhaoyuzhi/deepfillv2/issues/6
    zhaoyuzhi/DeblurGANv2-MobileNetv123-PyTorch#7: "there is no call to optimizer_D1.step() or optimizer_D2.step()
    functions", https://github.com/zhaoyuzhi/DeblurGANv2-MobileNetv123-PyTorch/issues/7
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.program_files import NO_MODULES, parse_files
from trueloop.analysis.queries.gradient_uses import uses_gradients
from trueloop.analysis.queries.uncalled_methods import uncalled
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence, SourceLocation
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.optimizer.never_stepped.cleared_only import cleared_for_step, cleared_only
from trueloop.failures.optimizer.never_stepped.step_calls import (
    OptimizerUses,
    Trees,
    changes_weights,
    find_assigned_target,
    find_step_lines,
    find_uses,
)
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, OptimizerCreated, Ref, SchedulerStepped, WatchEnded
from trueloop.tracing.running_code import user_modules
from trueloop.tracing.weak_id_dict import WeakIdDict

THIS_FILE = "this file"
MIN_BACKWARDS = 8  # backward passes without a step, by which a program that updates weights itself is recognised


@dataclass(slots=True, kw_only=True, eq=False)
class StepMissing(Event):
    """RARE. Several backward passes reached parameters that only one optimizer has, but it did not step them.

    The parameters have not changed. Emitted at the line of the latest backward pass, and again at the end of the watch.
    """

    optimizer: Ref
    backwards: int
    called_by_user: bool
    """Whether the user's code called ``backward``, not a library."""
    watch_ended: bool
    files: frozenset[str]
    """The running files; empty if some code cannot be read, as in an interactive session."""


class Detector(BaseDetector):
    """Checks in the source code whether an optimizer without a step after several backward passes can ever step."""

    def __init__(self) -> None:
        self._built = WeakIdDict[Ref, tuple[SourceLocation | None, str]]()
        """Source line that built each optimizer, and the name of its class."""
        self._schedules = set[CodePosition | None]()
        """Lines with a scheduler step while the scheduler's optimizer had not stepped."""
        self._reported = WeakIdDict[Ref, bool]()
        self._undecided = self._stepped = False
        """Whether an optimizer has not stepped for an unknown reason, and whether any optimizer has stepped."""

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record the new optimizer."""
        self._built.put(event.optimizer, (event.location.source_location if event.location else None, event.kind))

    def on_scheduler_stepped(self, event: SchedulerStepped) -> None:
        """Record the step of the scheduler."""
        if not event.optimizer_steps:
            self._schedules.add(event.location)

    def on_watch_ended(self, event: WatchEnded) -> None:
        """Return what is certain at the end of the run."""
        self._stepped = event.update > 0

    def on_step_missing(self, event: StepMissing) -> Evidence | None:
        """Return evidence if nothing in the source code can step the optimizer."""
        if self._reported.get(event.optimizer):
            return None
        self._undecided |= event.watch_ended
        built, optimizer_class = self._built.get(event.optimizer) or (None, "")
        uses = None
        for imports in (False, True):  # first without imported files: most optimizers are stepped by running files
            texts = parse_files(event.files, user_modules() if imports else NO_MODULES)
            if texts is None or built is None or uses_gradients(texts):
                return None
            tree = texts.get(built.path)
            target = find_assigned_target(tree, built.line, optimizer_class) if tree is not None else None
            uses = find_uses(texts, built.path, target, is_complete=imports) if target is not None else None
            if not self._is_never_stepped(event, texts, built, uses):
                return None
        self._reported.put(event.optimizer, True)
        uncalled = uses.uncalled_steps[0] if uses and uses.uncalled_steps else None
        return Evidence(
            message=f"{event.optimizer.name} has never stepped, although {event.backwards} backward passes computed "
            f"its gradients: {'`step` has no parentheses' if uncalled else 'the program never calls its `step()`'}.",
            location=SourceLocation(uncalled[0], uncalled[1].lineno) if uncalled else event.location,
            related=((built, "the optimizer was built here"),),
            first_update=0,
        )

    def _is_never_stepped(
        self, event: StepMissing, texts: Trees, built: SourceLocation, uses: OptimizerUses | None
    ) -> bool:
        """Return whether no code can step the optimizer; if it has no name, whether no code steps any optimizer."""
        is_in_use = uses is not None and (uses.cleared or bool(uses.uncalled_steps))
        if not event.watch_ended:
            return uses is not None and is_in_use and not uses.is_attribute
        if not event.called_by_user or (event.update and not is_in_use):
            return False
        scheduler_lines = {
            (line.source_location.path, line.source_location.line) for line in self._schedules if line is not None
        }
        return uses is not None or (built.path in texts and scheduler_lines.issuperset(find_step_lines(texts)))

    def inconclusive(self) -> str:
        """Return a reason if an optimizer has not stepped and perhaps should have stepped."""
        if not self._stepped:
            return "no optimizer stepped"
        return "an optimizer has not stepped, and it is not certain that it should have" if self._undecided else ""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the backward pass without a step after it, or the ``step`` without parentheses."""
    texts = {THIS_FILE: source.tree}
    creations = [each for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.OPTIMIZER]
    for built in creations:
        target = _variable_of(built)
        backward = _first_backward(source, built, creations)
        if target is None or backward is None or uses_gradients(texts) or changes_weights(source.tree):
            continue
        uses = find_uses(texts, THIS_FILE, target)
        if uses is None or uses.is_attribute:
            continue
        schedules = {(THIS_FILE, each.node.lineno) for each in source.ops(OpKind.SCHEDULER_STEP)}
        if not uses.cleared and not uses.uncalled_steps and not schedules.issuperset(find_step_lines(texts)):
            continue
        uncalled = uses.uncalled_steps[0][1] if uses.uncalled_steps else None
        message = f"`{target.id}.step()` is never called, although this line computes its gradients."
        yield Hit(
            message=f"`{source.text.segment(uncalled)}` does nothing: it has no parentheses." if uncalled else message,
            node=uncalled or backward.node,
            related=((built.node, "the optimizer was built here"),),
            fix=_add_parentheses(source, uncalled)
            if uncalled
            else _insert_step(source, backward, target.id, cleared=uses.cleared),
        )


def _variable_of(built: Op) -> ast.Name | None:
    """Return the variable that holds a new optimizer."""
    statement = built.statement
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    single = isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is built.node and len(targets) == 1
    return targets[0] if single and isinstance(targets[0], ast.Name) else None


def _first_backward(source: SourceFile, built: Op, creations: list[Op]) -> Op | None:
    """Return the first backward pass in a loop that reaches the parameters of this optimizer only."""
    optimizer = built.subject
    if MANAGED in optimizer.facts or not optimizer.models():
        return None
    others = [each.subject for each in creations if each.subject is not optimizer]
    if any(not each.models() or each.covers(optimizer) or optimizer.covers(each) for each in others):
        return None
    for each in source.ops_of_run(built)[built.index :]:
        loops = [loop for loop in each.loops if not built.is_inside(loop)]
        only_scaled = all(value.kind is ValueKind.SCALER for value in each.inputs)
        if each.kind is OpKind.BACKWARD and _repeats_enough(loops) and only_scaled and source.reaches(each, optimizer):
            return None if source.escapes(optimizer, source.ops_in_loop(loops[0], root=each.entry_point)) else each
    return None


def _repeats_enough(loops: list[Loop]) -> bool:
    """Return True if loops run at least ``MIN_BACKWARDS`` times, or an unknown number of times."""
    trip_counts = [loop.trip_count() for loop in loops if not loop.runs_at_most_once()]
    return None in trip_counts or (bool(trip_counts) and prod(filter(None, trip_counts)) >= MIN_BACKWARDS)


def _add_parentheses(source: SourceFile, uncalled: ast.Attribute) -> Fix:
    end = source.text.span(uncalled)[1]
    return Fix((Edit(end, end, "()"),), safe=False, description="Add the parentheses")


def _insert_step(source: SourceFile, backward: Op, name: str, *, cleared: bool) -> Fix | None:
    """Return the fix that inserts a step after the backward pass, and a ``zero_grad()`` if there is none."""
    clips = [
        each
        for each in source.ops(OpKind.CLIP_GRADIENTS)
        if each.same_iteration_as(backward) and each.index > backward.index
    ]
    statement = (clips[-1] if clips else backward).statement
    is_insertable = isinstance(statement, ast.Expr) and source.block(statement) is source.block(backward.statement)
    if not isinstance(backward.statement, ast.Expr) or not is_insertable or backward.calls or backward.inputs:
        return None
    edit = source.text.insert_after(
        statement or backward.statement, f"{name}.step()", *([] if cleared else [f"{name}.zero_grad()"])
    )
    return Fix((edit,), safe=False, description=f"Insert {name}.step()") if edit else None


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, each optimizer that is cleared instead of stepped, and each ``step`` without a call."""
    reported = set[int]()
    for hit in find(source):
        reported |= {id(hit.node), *(id(node) for node, _ in hit.related)}
        yield hit
    misspelt = set[str]()
    for backward, clearing in cleared_for_step(source):
        method: Any = clearing.call.func
        misspelt.add(ast.unparse(method.value))
        if id(backward.call) in reported:
            continue
        yield Hit(
            message=f"`{ast.unparse(clearing.call)}` clears the gradients that `{ast.unparse(backward.call)}` computed "
            f"for it: `{ast.unparse(method.value)}.step()` is meant here.",
            node=clearing.call,
            related=((backward.call, "the gradients are computed here"),),
            severity=Severity.WARNING,
            fix=Fix(
                (source.text.replace(clearing.call, f"{ast.unparse(method.value)}.step()"),),
                safe=False,
                description="Step the optimizer",
            ),
        )
    for built in cleared_only(source):
        target = _target_text(built)
        if id(built.node) not in reported and target not in misspelt:
            yield Hit(
                message=f"`{target}` is built and cleared, but `{target}.step()` is never called: its parameters do "
                "not change.",
                node=built.node,
                severity=Severity.WARNING,
            )
    for each in uncalled(source, "step", "no weight is updated", "zero_grad", "param_groups", "state_dict"):
        if "sched" not in ast.unparse(each.node).lower():
            yield each


def _target_text(built: Op) -> str:
    targets: list[ast.expr] = getattr(built.statement, "targets", [])
    return ast.unparse(targets[0]) if len(targets) == 1 else "the optimizer"


RULE = Rule(required_words=("backward(|.step", "torch.optim|optim.|ptimizer(|.step"), find=find_all)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.leave_out(Piece.OPTIMIZER_STEP)


BAD = """
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
"""

FAILURE = Failure(
    code="OPT006",
    title="optimizer.step() is never called",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"loss.backward()": "loss.backward()\n    optimizer.step()"}),
    fix="Call optimizer.step() after backward().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
