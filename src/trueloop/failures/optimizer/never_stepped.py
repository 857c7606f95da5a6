"""An optimizer is never stepped, though backward fills the gradients of what it holds again and again.

What you see
    The loss stays where it began; only the batches, dropout and batch normalisation make it differ. With several
    optimizers one model does not learn, such as the discriminator of a GAN.

Why it happens
    Gradients are there to be looked at as well, and nobody has to use them. ``optimizer.step`` without parentheses is
    an expression that names a method, and is done.

Fix
    Call ``optimizer.step()`` behind the backward of each window, with its parentheses.

When this is fine
    A window of many batches, a warm-up, a stage or a part of a GAN that comes later, a GradScaler that skips; whoever
    looks at gradients (saliency, adversarial examples, Fisher information, norms), takes them by hooks or changes the
    weights by hand; a trainer or a wrapper of a library that steps; a step inside of backward; another optimizer over
    the same parameters; a script that builds an optimizer to load a checkpoint. So eight backwards have to reach
    parameters that one optimizer holds alone and that nobody changes, the text of the program must not use gradients
    itself, and nothing in it may step that optimizer: neither by the name it was built under, nor by those that it is
    handed on to. It has to be cleared there, or its ``step`` named, where others step; else it is enough, at the end
    of the run, that nothing does. At a prompt and in a notebook the next line may step, so a run says nothing there.
    Who only clears through an optimizer, to measure backward or to fit the input, is named: ``model.zero_grad()`` does
    without one.

References
    Optimizing Model Parameters, https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
    zhaoyuzhi/deepfillv2#6, "Discriminator parameter not update?": "you do not include optimizer.step in trainer.py",
    https://github.com/zhaoyuzhi/deepfillv2/issues/6
    zhaoyuzhi/DeblurGANv2-MobileNetv123-PyTorch#7: "there is no call to optimizer_D1.step() or optimizer_D2.step()
    functions", https://github.com/zhaoyuzhi/DeblurGANv2-MobileNetv123-PyTorch/issues/7
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from math import prod
from typing import ClassVar

from trueloop.analysis.abstract_value import MANAGED, Kind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence, CodePosition, SourceLocation
from trueloop.core.source_text import Edit, Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, OptimizerCreated, Ref, ScheduleAdvanced, StepAwaited, WatchEnded
from trueloop.tracing.object_facts import Facts
from trueloop.tracing.program_text.step_calls import Texts, Uses, bound_to, changed_by_hand, gradients_used, steps, uses

HERE = "this file"
FEWEST = 8  # backwards, as at run time


class Detector(failure.Detector):
    """Reads what the program's text does with an optimizer that several backwards have waited for."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, StepAwaited, ScheduleAdvanced, WatchEnded)

    def __init__(self) -> None:
        self._built = Facts[Ref, tuple[SourceLocation | None, str]]()
        """Where, and of which class."""
        self._schedules = set[CodePosition | None]()
        """Lines that advance the schedules of optimizers without a step."""
        self._told = Facts[Ref, bool]()
        self._open = self._stepped = False
        """An optimizer has not stepped, and nobody can tell why; any optimizer has."""

    def observe(self, event: OptimizerCreated | StepAwaited | ScheduleAdvanced | WatchEnded) -> Evidence | None:
        """Return evidence where nothing in the text can step it."""
        if isinstance(event, StepAwaited):
            return self._awaited(event)
        if isinstance(event, OptimizerCreated):
            self._built.put(event.optimizer, (event.place.site if event.place else None, event.kind))
        elif isinstance(event, WatchEnded):
            self._stepped = event.update > 0
        elif not event.optimizer_steps:
            self._schedules.add(event.place)
        return None

    def _awaited(self, event: StepAwaited) -> Evidence | None:
        if self._told.get(event.optimizer):
            return None
        self._open |= event.ended
        site, kind = self._built.get(event.optimizer) or (None, "")
        found = None
        for imports in (False, True):  # most are found to be stepped where they run
            texts = event.read(imports)
            if site is None or gradients_used(texts):
                return None
            tree = texts.get(site.path)
            target = bound_to(tree, site.line, kind) if tree is not None else None
            found = uses(texts, site.path, target, whole=imports) if target is not None else None
            if not self._never(event, texts, site, found):
                return None
        self._told.put(event.optimizer, True)
        named = found.named[0] if found and found.named else None
        return Evidence(
            message=f"{event.backwards} backwards reached the parameters of {event.optimizer.name}, which has never "
            f"stepped: {'its step is named, not called' if named else 'nothing in the program steps it'}.",
            location=SourceLocation(named[0], named[1].lineno) if named else event.place,
            related=((site, "the optimizer was built here"),),
            update=0,
        )

    def _never(self, event: StepAwaited, texts: Texts, built: SourceLocation, found: Uses | None) -> bool:
        """Whether it is certain: by its name where it has one, else since nothing in the program steps at all."""
        meant = found is not None and (found.cleared or bool(found.named))
        if not event.ended:
            return found is not None and meant and not found.held
        if not event.direct or (event.update and not meant):
            return False
        advanced = {(place.site.path, place.site.line) for place in self._schedules if place is not None}
        return found is not None or (built.path in texts and advanced.issuperset(steps(texts)))

    def inconclusive(self) -> str:
        """Return a reason where an optimizer has not stepped, and may have had to."""
        if not self._stepped:
            return "no optimizer stepped"
        return "an optimizer has not stepped, and whether it was to is not certain" if self._open else ""


def find(source: Source) -> Iterator[Hit]:
    """Yield the backward that an optimizer's step is missing behind, or the place where that is only named."""
    texts = {HERE: source.tree}
    made = [each for each in source.acts(OpKind.MADE) if each.subject.kind is Kind.OPTIMIZER]
    for built in made:
        target = _name(built)
        backward = _backward(source, built, made)
        if target is None or backward is None or gradients_used(texts) or changed_by_hand(source.tree):
            continue
        found = uses(texts, HERE, target)
        if found is None or found.held:
            continue
        schedules = {(HERE, each.node.lineno) for each in source.acts(OpKind.SCHEDULED)}
        if not found.cleared and not found.named and not schedules.issuperset(steps(texts)):
            continue
        named = found.named[0][1] if found.named else None
        yield Hit(
            message=f"The step of {target.id} is named here, and not called." if named
            else f"Nothing steps {target.id}, whose gradients this backward fills.",
            node=named or backward.node,
            related=((built.node, "the optimizer was built here"),),
            fix=_called(source, named) if named else _added(source, backward, target.id, cleared=found.cleared),
        )  # fmt: skip


def _name(built: Op) -> ast.Name | None:
    """Return the variable that holds a new optimizer."""
    given = built.statement
    targets = given.targets if isinstance(given, ast.Assign) else [getattr(given, "target", None)]
    own = isinstance(given, ast.Assign | ast.AnnAssign) and given.value is built.node and len(targets) == 1
    return targets[0] if own and isinstance(targets[0], ast.Name) else None


def _backward(source: Source, built: Op, made: list[Op]) -> Op | None:
    """Return the first backward of a loop that comes to what one optimizer holds, and no other one."""
    optimizer = built.subject
    if MANAGED in optimizer.facts or not optimizer.models():
        return None
    others = [each.subject for each in made if each.subject is not optimizer]
    if any(not each.models() or each.covers(optimizer) or optimizer.covers(each) for each in others):
        return None
    for each in source.run_of(built)[built.index :]:
        loops = [loop for loop in each.loops if not built.within(loop)]
        scaled = all(thing.kind is Kind.SCALER for thing in each.things)
        if each.act is OpKind.BACKWARD and _often(loops) and scaled and source.reaches(each, optimizer):
            return None if source.handed_out(optimizer, source.within(loops[0], root=each.root)) else each
    return None


def _often(loops: list[Loop]) -> bool:
    """True where loops have more turns than a probe, or the text does not tell."""
    turns = [loop.turns() for loop in loops if not loop.once()]
    return None in turns or (bool(turns) and prod(filter(None, turns)) >= FEWEST)


def _called(source: Source, named: ast.Attribute) -> Fix:
    end = source.text.span(named)[1]
    return Fix((Edit(end, end, "()"),), safe=False, words="Call it")


def _added(source: Source, backward: Op, name: str, *, cleared: bool) -> Fix | None:
    """Return the fix: a step behind the backward, and clearing where there is none."""
    clips = [each for each in source.acts(OpKind.CLIPPED) if each.beside(backward) and each.index > backward.index]
    statement = (clips[-1] if clips else backward).statement
    alone = isinstance(statement, ast.Expr) and source.block(statement) is source.block(backward.statement)
    if not isinstance(backward.statement, ast.Expr) or not alone or backward.calls or backward.things:
        return None
    edit = source.text.after(
        statement or backward.statement, f"{name}.step()", *([] if cleared else [f"{name}.zero_grad()"])
    )
    return Fix((edit,), safe=False, words=f"Insert {name}.step()") if edit else None


RULE = Rule(words=("backward(", "torch.optim|optim.|ptimizer("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.leave_out(Piece.UPDATE)


FAILURE = Failure(
    code="OPT006",
    title="An optimizer is never stepped",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
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
""",
    good="""
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
    optimizer.step()
""",
    fix="Call the optimizer's step behind the backward of each window.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
