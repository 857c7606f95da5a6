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
    notebooks are not checked, because the next line may step. The linter applies the same conditions to one file.

References
    Optimizing Model Parameters, https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    zhaoyuzhi/deepfillv2#6, "Discriminator parameter not update?": "you do not include optimizer.step in trainer.py",
    https://github.com/zhaoyuzhi/deepfillv2/issues/6
    zhaoyuzhi/DeblurGANv2-MobileNetv123-PyTorch#7: "there is no call to optimizer_D1.step() or optimizer_D2.step()
    functions", https://github.com/zhaoyuzhi/DeblurGANv2-MobileNetv123-PyTorch/issues/7
"""

import ast
from collections.abc import Iterator
from math import prod

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence, SourceLocation
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import OptimizerCreated, Ref, SchedulerStepped, StepMissing, WatchEnded
from trueloop.tracing.program_text.step_calls import (
    OptimizerUses,
    Trees,
    changes_weights,
    find_assigned_target,
    find_step_lines,
    find_uses,
    uses_gradients,
)
from trueloop.tracing.weak_id_dict import WeakIdDict

THIS_FILE = "this file"
MIN_BACKWARDS = 8  # the same number as in a run


class Detector(BaseDetector):
    """Checks in the source code whether an optimizer without a step after several backward passes can ever step."""

    subscribes_to = (OptimizerCreated, StepMissing, SchedulerStepped, WatchEnded)

    def __init__(self) -> None:
        self._built = WeakIdDict[Ref, tuple[SourceLocation | None, str]]()
        """Source line that built each optimizer, and the name of its class."""
        self._schedules = set[CodePosition | None]()
        """Lines with a scheduler step while the scheduler's optimizer had not stepped."""
        self._reported = WeakIdDict[Ref, bool]()
        self._undecided = self._stepped = False
        """Whether an optimizer has not stepped for an unknown reason, and whether any optimizer has stepped."""

    def observe(self, event: OptimizerCreated | StepMissing | SchedulerStepped | WatchEnded) -> Evidence | None:
        """Return evidence where nothing in the source code can step the optimizer."""
        if isinstance(event, StepMissing):
            return self._check_awaited(event)
        if isinstance(event, OptimizerCreated):
            self._built.put(event.optimizer, (event.location.source_location if event.location else None, event.kind))
        elif isinstance(event, WatchEnded):
            self._stepped = event.update > 0
        elif not event.optimizer_steps:
            self._schedules.add(event.location)
        return None

    def _check_awaited(self, event: StepMissing) -> Evidence | None:
        if self._reported.get(event.optimizer):
            return None
        self._undecided |= event.watch_ended
        built, kind = self._built.get(event.optimizer) or (None, "")
        found = None
        for imports in (False, True):  # first without imported files: most optimizers are stepped by running files
            texts = event.read_modules(imports)
            if built is None or uses_gradients(texts):
                return None
            tree = texts.get(built.path)
            target = find_assigned_target(tree, built.line, kind) if tree is not None else None
            found = find_uses(texts, built.path, target, is_complete=imports) if target is not None else None
            if not self._is_never_stepped(event, texts, built, found):
                return None
        self._reported.put(event.optimizer, True)
        named = found.uncalled_steps[0] if found and found.uncalled_steps else None
        return Evidence(
            message=f"{event.optimizer.name} has never stepped, although {event.backwards} backward passes computed "
            f"its gradients: {'`step` has no parentheses' if named else 'the program never calls its `step()`'}.",
            location=SourceLocation(named[0], named[1].lineno) if named else event.location,
            related=((built, "the optimizer was built here"),),
            first_update=0,
        )

    def _is_never_stepped(
        self, event: StepMissing, texts: Trees, built: SourceLocation, found: OptimizerUses | None
    ) -> bool:
        """Return whether no code can step the optimizer; if it has no name, whether no code steps any optimizer."""
        in_use = found is not None and (found.cleared or bool(found.uncalled_steps))
        if not event.watch_ended:
            return found is not None and in_use and not found.is_attribute
        if not event.called_by_user or (event.update and not in_use):
            return False
        advanced = {
            (line.source_location.path, line.source_location.line) for line in self._schedules if line is not None
        }
        return found is not None or (built.path in texts and advanced.issuperset(find_step_lines(texts)))

    def inconclusive(self) -> str:
        """Return a reason where an optimizer has not stepped and perhaps should have stepped."""
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
        found = find_uses(texts, THIS_FILE, target)
        if found is None or found.is_attribute:
            continue
        schedules = {(THIS_FILE, each.node.lineno) for each in source.ops(OpKind.SCHEDULER_STEP)}
        if not found.cleared and not found.uncalled_steps and not schedules.issuperset(find_step_lines(texts)):
            continue
        named = found.uncalled_steps[0][1] if found.uncalled_steps else None
        never = f"`{target.id}.step()` is never called, although this line computes its gradients."
        yield Hit(
            message=f"`{source.text.segment(named)}` does nothing: it has no parentheses." if named else never,
            node=named or backward.node,
            related=((built.node, "the optimizer was built here"),),
            fix=_add_parentheses(source, named)
            if named
            else _insert_step(source, backward, target.id, cleared=found.cleared),
        )


def _variable_of(built: Op) -> ast.Name | None:
    """Return the variable that holds a new optimizer."""
    statement = built.statement
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    own = isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is built.node and len(targets) == 1
    return targets[0] if own and isinstance(targets[0], ast.Name) else None


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
        scaled = all(value.kind is ValueKind.SCALER for value in each.inputs)
        if each.kind is OpKind.BACKWARD and _repeats_enough(loops) and scaled and source.reaches(each, optimizer):
            return None if source.escapes(optimizer, source.ops_in_loop(loops[0], root=each.entry_point)) else each
    return None


def _repeats_enough(loops: list[Loop]) -> bool:
    """Return True where loops run at least ``MIN_BACKWARDS`` times, or an unknown number of times."""
    trip_counts = [loop.trip_count() for loop in loops if not loop.runs_at_most_once()]
    return None in trip_counts or (bool(trip_counts) and prod(filter(None, trip_counts)) >= MIN_BACKWARDS)


def _add_parentheses(source: SourceFile, named: ast.Attribute) -> Fix:
    end = source.text.span(named)[1]
    return Fix((Edit(end, end, "()"),), safe=False, description="Add the parentheses")


def _insert_step(source: SourceFile, backward: Op, name: str, *, cleared: bool) -> Fix | None:
    """Return the fix that inserts a step after the backward pass, and a ``zero_grad()`` where there is none."""
    clips = [
        each
        for each in source.ops(OpKind.CLIP_GRADIENTS)
        if each.same_iteration_as(backward) and each.index > backward.index
    ]
    statement = (clips[-1] if clips else backward).statement
    alone = isinstance(statement, ast.Expr) and source.block(statement) is source.block(backward.statement)
    if not isinstance(backward.statement, ast.Expr) or not alone or backward.calls or backward.inputs:
        return None
    edit = source.text.insert_after(
        statement or backward.statement, f"{name}.step()", *([] if cleared else [f"{name}.zero_grad()"])
    )
    return Fix((edit,), safe=False, description=f"Insert {name}.step()") if edit else None


RULE = Rule(required_words=("backward(", "torch.optim|optim.|ptimizer("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
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
