"""``optimizer.step()`` is never called, although backward fills the gradients again and again.

What you see
    The loss stays at its first value; only batches, dropout and batch normalisation make it vary. With several
    optimizers one model does not learn, such as the discriminator of a GAN.

Why it happens
    Gradients have other uses, so PyTorch does not require a step. ``optimizer.step`` without parentheses is a valid
    expression that does nothing.

Fix
    Call ``step()``, with parentheses, after the backward of each update.

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

When this is fine
    - The step comes later: a window of many batches, a warm-up, a later stage, a GradScaler that skips.
    - Gradients are only read: saliency, adversarial examples, Fisher information, norms, hooks.
    - Something else updates the weights: your own code, a library's trainer, a hook in backward, another optimizer.
    - A script builds the optimizer only to load a checkpoint.

How it is detected
    At run time, eight backwards must reach parameters that this optimizer alone holds and that do not change. The
    program's text must not use gradients itself, nor step the optimizer under any name it is passed on by. If other
    optimizers step, this one must also be cleared or its ``step`` named; otherwise the run must end without a step.
    Prompts and notebooks are not judged, since the next line may step. An optimizer used only for ``zero_grad()``
    is reported: use ``model.zero_grad()``. Lint applies the same conditions to one file.

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
MIN_BACKWARDS = 8  # as at run time


class Detector(BaseDetector):
    """Checks in the program's text whether an optimizer that has not stepped after several backwards ever can."""

    subscribes_to = (OptimizerCreated, StepMissing, SchedulerStepped, WatchEnded)

    def __init__(self) -> None:
        self._built = WeakIdDict[Ref, tuple[SourceLocation | None, str]]()
        """Where each optimizer was built, and its class."""
        self._schedules = set[CodePosition | None]()
        """Lines that advance schedules of optimizers that have not stepped."""
        self._reported = WeakIdDict[Ref, bool]()
        self._undecided = self._stepped = False
        """Whether an optimizer has not stepped for an unknown reason, and whether any optimizer has stepped."""

    def observe(self, event: OptimizerCreated | StepMissing | SchedulerStepped | WatchEnded) -> Evidence | None:
        """Return evidence where nothing in the text can step the optimizer."""
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
        site, kind = self._built.get(event.optimizer) or (None, "")
        found = None
        for imports in (False, True):  # most are stepped by the files that are running
            texts = event.read_modules(imports)
            if site is None or uses_gradients(texts):
                return None
            tree = texts.get(site.path)
            target = find_assigned_target(tree, site.line, kind) if tree is not None else None
            found = find_uses(texts, site.path, target, is_complete=imports) if target is not None else None
            if not self._is_never_stepped(event, texts, site, found):
                return None
        self._reported.put(event.optimizer, True)
        named = found.uncalled_steps[0] if found and found.uncalled_steps else None
        return Evidence(
            message=f"{event.backwards} backward passes reached the parameters of {event.optimizer.name}, which has "
            f"never stepped: {'`step` lacks its parentheses' if named else 'the program never calls its `step()`'}.",
            location=SourceLocation(named[0], named[1].lineno) if named else event.location,
            related=((site, "the optimizer was built here"),),
            first_update=0,
        )

    def _is_never_stepped(
        self, event: StepMissing, texts: Trees, built: SourceLocation, found: OptimizerUses | None
    ) -> bool:
        """Return whether nothing can step it: under its name where it has one, else because nothing steps at all."""
        in_use = found is not None and (found.cleared or bool(found.uncalled_steps))
        if not event.watch_ended:
            return found is not None and in_use and not found.is_attribute
        if not event.called_by_user or (event.update and not in_use):
            return False
        advanced = {
            (place.source_location.path, place.source_location.line) for place in self._schedules if place is not None
        }
        return found is not None or (built.path in texts and advanced.issuperset(find_step_lines(texts)))

    def inconclusive(self) -> str:
        """Return a reason where an optimizer has not stepped, but perhaps should have."""
        if not self._stepped:
            return "no optimizer stepped"
        return "an optimizer has not stepped, and it is not certain that it should have" if self._undecided else ""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the backward that lacks a step after it, or the expression that names ``step`` without calling it."""
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
        never = f"`{target.id}.step()` is never called, although this backward fills its gradients."
        yield Hit(
            message=f"`{source.text.segment(named)}` is not called: it lacks its parentheses." if named else never,
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
    """Return the first backward in a loop that reaches the parameters of this optimizer and of no other."""
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
    """Return the fix: a step after the backward, and a ``zero_grad()`` where there is none."""
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
    fix="Call optimizer.step() after the backward of each update.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
