"""A gradient that a step has already used is used again, with a new one added on top.

What you see
    The loss falls at first, then wanders or blows up. The gradient norm grows from update to update, as if the learning
    rate did; a smaller learning rate seems to help.

Why it happens
    ``backward()`` adds into ``.grad`` by design, so that several batches can share a step. Nothing knows that the step
    in between has used what was there.

Fix
    Call ``optimizer.zero_grad()`` once per update, before the first backward or after the step. Where a model has
    several optimizers, each clears its own.

When this is fine
    Gradient accumulation adds several backwards and steps once. A GAN's generator pass adds into the discriminator's
    used gradients, which are cleared before its own pass. Clearing after the step, ``model.zero_grad()``,
    ``p.grad = None``, ``p.grad.zero_()``, gradients that are decayed by hand, closures and SAM are all right.
    Certain because it is followed for every parameter: its gradient was used by a step, was still the same object with
    the same numbers when a backward began, was added to, and then used by a step again. So a ``zero_grad()`` of the
    wrong optimizer, or of one half of the model, is found too. The text of a Lightning module that optimizes by hand is
    told as a warning, since DeepSpeed's engine clears by itself, and only where nothing in the file clears anything.

References
    torch.optim.Optimizer.zero_grad, https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    PyTorch recipe "Zeroing out gradients",
    https://docs.pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.modes import renewed
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.gradient.never_cleared.lightning import uncleared
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, Ref, StepTaken
from trueloop.tracing.object_facts import Facts


class Detector(failure.Detector):
    """Every step tells which of its gradients hold something that a step had used before."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StepTaken,)

    def __init__(self) -> None:
        self._first_norms = Facts[Ref, float | None]()
        """Of each optimizer's gradients."""

    def observe(self, event: StepTaken) -> Evidence | None:
        """Return evidence where a step uses a gradient for the second time."""
        if not event.reused:
            if not self._first_norms.get(event.optimizer):
                self._first_norms.put(event.optimizer, event.norm)
            return None
        count, held = len(event.reused), len(event.with_gradient)
        which = f"all {held} gradients" if count == held else f"{count} of {held} gradients"
        first, grown = self._first_norms.get(event.optimizer), ""
        if first and event.norm and event.norm > 1.05 * first:
            grown = f" Their norm went from {first:.3g} to {event.norm:.3g}."
        named = "" if count == held else f" Among them: {', '.join(sorted(ref.name for ref in event.reused)[:3])}."
        return Evidence(
            message=f"{event.optimizer.name} stepped on {which} that an earlier step had already used, with a new "
            f"backward added on top.{grown}{named}",
            place=event.place,
            related=((event.reused_from, "added here to gradients that were used already"),)
            if event.reused_from
            else (),
        )


_WORDS: Final = "Clear the gradients after the step"
HOOKS: Final = frozenset(("register_step_pre_hook", "register_step_post_hook"))


def find(source: Source) -> Iterator[Hit]:
    """Yield the steps in a loop with a backward of the optimizer's parameters, in which nothing clears them."""
    for step in source.acts(OpKind.STEPPED):
        optimizer, loops = step.subject, [each for each in step.loops if not each.once()]
        if optimizer.kind is not Kind.OPTIMIZER or not loops:
            continue
        inside = source.within(loops[-1], root=step.root)
        backward = next(
            (each for each in inside if each.act is OpKind.BACKWARD and source.reaches(each, optimizer)), None
        )
        cleared = any(source.clears(each, optimizer) for each in inside)
        if backward is None or cleared or _fresh(optimizer, loops[-1], inside) or _hooked(source, step):
            continue
        if source.handed_out(optimizer, inside):
            continue
        yield Hit(
            message="Every turn of the loop adds to the gradients and steps, and none clears them.",
            node=step.node,
            related=((backward.node, "adds to the gradients that are there"),),
            fix=_cleared(source, step),
        )


def find_all(source: Source) -> Iterator[Hit]:
    """Yield what `find` does, and the steps of Lightning modules that do by hand what Lightning otherwise does."""
    yield from find(source)
    for step, statement, backward in uncleared(source):
        after = f"{source.text.of(step.func.value)}.zero_grad()" if isinstance(step.func, ast.Attribute) else ""
        edit = source.text.after(statement, after) if statement and after else None
        yield Hit(
            message="Each training_step adds to the gradients and steps by hand, and none clears them.",
            node=step,
            related=((backward, "adds to the gradients that are there"),),
            fix=Fix((edit,), safe=True, words=_WORDS) if edit else None,
            severity=Severity.WARNING,
        )


def _fresh(optimizer: AbstractValue, loop: Loop, inside: list[Op]) -> bool:
    """Return True where each turn of a loop may have an optimizer of its own, over parameters of its own."""
    if not optimizer.models():
        made = any(each.act is OpKind.MADE and each.subject.may_be(optimizer) for each in inside)
    else:
        made = any(renewed(loop, each, inside) for each in optimizer.models())
    return made or any(each.may_be(optimizer) or each.covers(optimizer) for each in _gone_through(loop))


def _gone_through(loop: Loop) -> list[AbstractValue]:
    """Return what a loop goes through, and what lists of it hold: models, optimizers, pairs of them."""
    found = [] if loop.over is None else [loop.over]
    for each in found:
        if each.kind in (Kind.SEQUENCE, Kind.UNKNOWN):
            found += [inner for inner in (*each.of, *each.either) if inner not in found]
    return found


def _hooked(source: Source, step: Op) -> bool:
    """Return True where something of the program's own runs with every step."""
    names = {each.func.attr for each in source.all_calls if isinstance(each.func, ast.Attribute)}
    return bool(names & HOOKS)


def _cleared(source: Source, step: Op) -> Fix | None:
    """Return the fix: the gradients are cleared behind the step."""
    statement = step.statement
    if not isinstance(statement, ast.Expr) or statement.value is not step.node or step.things:
        return None
    edit = source.text.after(statement, f"{source.text.of(step.node.func.value)}.zero_grad()")
    return Fix((edit,), safe=True, words=_WORDS) if edit else None


RULE = Rule(words=("backward(", ".step("), find=find_all)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.leave_out(Piece.CLEAR)


FAILURE = Failure(
    code="GRD001",
    title="Gradients are never cleared",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    rows = torch.randint(256, (32,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    rows = torch.randint(256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
""",
    fix="Call optimizer.zero_grad() once per update, before its first backward.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
