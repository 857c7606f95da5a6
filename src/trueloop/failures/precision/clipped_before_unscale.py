"""Gradients are clipped while they are still multiplied by GradScaler's factor.

What you see
    With mixed precision in float16 training crawls, as with a tiny learning rate; without it the same settings work.

Why it happens
    GradScaler multiplies the loss by a large factor (65536 at first) and divides the gradients inside its ``step``.
    Clipped before that, a norm of 65536 times its true size is cut to the limit, and then divided by 65536.

Fix
    Call ``scaler.unscale_(optimizer)`` after the last backward of the window and before clipping; ``scaler.step``
    knows that it was done.

When this is fine
    ``scaler.unscale_(optimizer)`` before clipping, a scaler that is switched off, and a norm that is only read
    (``max_norm=inf``) are all right, and so is a limit that was multiplied by the factor too. Certain because each
    gradient is followed from the scaled backward to the clipping. The text alone tells it where a backward through a
    scaler that is not switched off reaches what is clipped, and nothing between them unscales, steps or is unknown.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient clipping,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import infinite, limit_of, scaler_of
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, GradientsClipped, LossScaled

SHARE = 0.01  # of the factor: nobody clips at 655 who has not multiplied the limit by 65536 as well


class Detector(failure.Detector):
    """Every clipping tells which of its gradients are scaled."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LossScaled, GradientsClipped)

    def __init__(self) -> None:
        self._scale: float | None = None

    def observe(self, event: LossScaled | GradientsClipped) -> Evidence | None:
        """Return evidence where scaled gradients are clipped."""
        if isinstance(event, LossScaled):
            self._scale = event.scale
            return None
        if event.only_measured or not event.scaled or (self._scale and event.limit >= SHARE * self._scale):
            return None
        by = f" by {self._scale:g}" if self._scale else ""
        norm = f" The norm it saw was {event.measured:.3g}." if event.measured else ""
        return Evidence(
            message=f"{len(event.scaled)} gradients were clipped at {event.limit:g} while GradScaler still had them "
            f"multiplied{by}.{norm}",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping of what a scaled backward has made, with nothing in between that unscales it."""
    repaired: set[int] = set()
    for clip in source.ops(OpKind.CLIP_GRADIENTS):
        limit = limit_of(clip)
        told_of = limit is not None and any(each.kind is ValueKind.SCALER for each in limit.ancestors())
        backward = None if infinite(clip) or told_of else _scaled(source, clip)
        if backward is None:
            continue
        first = clip.entry_point not in repaired  # of two clippings the first one unscales for both
        repaired.add(clip.entry_point)
        yield Hit(
            message="The gradients are clipped while GradScaler still has them multiplied by its factor.",
            node=clip.node,
            related=((backward.node, "the scaled loss goes backward here"),),
            fix=_unscaled(source, clip) if first else None,
        )


def _scaled(source: SourceFile, clip: Op) -> Op | None:
    """Return the last backward before a clipping, if it surely was scaled, and nothing has unscaled it."""
    run = source.ops_of_run(clip)
    for each in reversed(run[: run.index(clip)]):
        match each.kind:
            case OpKind.UNSCALE | OpKind.ACCESS_GRADIENTS | OpKind.STEP | OpKind.CLEAR_GRADIENTS:
                return None
            case OpKind.ESCAPE if any(_could_unscale(given) for given in each.inputs):
                return None
            case OpKind.BACKWARD if not each.excludes(clip):
                scaler = scaler_of(each)
                reached = clip.subject.models() and source.reaches(each, clip.subject)
                return each if scaler and reached and _on(scaler, each, clip) else None
            case _:
                pass
    return None


def _could_unscale(given: AbstractValue) -> bool:
    return given.kind in (ValueKind.SCALER, ValueKind.OPTIMIZER, ValueKind.MODEL, ValueKind.PARAMETERS, ValueKind.INSTANCE, ValueKind.FUNCTION)


def _on(scaler: AbstractValue, backward: Op, clip: Op) -> bool:
    """Return True where the scaler can be on, and no condition of the clipping has to do with that."""
    enabled = scaler.arguments.get("enabled")
    if any(each.kind is not ValueKind.SCALER or each.name == "" for each in scaler.alternatives()):
        return False  # made elsewhere
    if enabled is not None and enabled.constant() is False:
        return False
    asked = set[str]()
    if enabled is not None and enabled.constant() is not True and enabled.node is not None:
        asked = _ends(enabled.node)
    mine = {id(each.node) for each in clip.branches}
    asked |= {word for each in backward.branches if id(each.node) not in mine for word in _asked(each.node)}
    theirs = {id(each.node) for each in backward.branches}
    return not any(_asked(each.node) & asked for each in clip.branches if id(each.node) not in theirs)


def _asked(node: ast.AST) -> set[str]:
    return _ends(node.test) if isinstance(node, ast.If) else set()


def _ends(node: ast.AST) -> set[str]:
    """Return the names that an expression asks for: of ``self.args.amp`` the last."""
    inner = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    outer = [each for each in ast.walk(node) if id(each) not in inner]
    return {each.id for each in outer if isinstance(each, ast.Name)} | {
        each.attr for each in outer if isinstance(each, ast.Attribute)
    }


def _unscaled(source: SourceFile, clip: Op) -> Fix | None:
    """Return the fix: unscale before clipping, and not again behind it."""
    run = source.ops_of_run(clip)
    steps = [each for each in run if each.kind is OpKind.STEP and each.same_iteration_as(clip) and each.implied_by(clip)]
    steps = [
        each for each in steps if each.index > clip.index and scaler_of(each) and each.subject.covers(clip.subject)
    ]
    if len(steps) != 1 or clip.statement is None or steps[0].function is not clip.function:
        return None
    step, call = steps[0], steps[0].node
    late = [each for each in run if each.kind is OpKind.UNSCALE and clip.index < each.index < step.index]
    if late:
        statement = late[0].statement
        plain = isinstance(statement, ast.Expr) and statement.value is late[0].node and late[0].implied_by(clip)
        alone = plain and len(late) == 1 and len(source.block(statement)) > 1
        edits = source.text.move_statement(statement, before=clip.statement) if statement and alone else None
        return Fix(edits, safe=True, description="Unscale before clipping") if edits else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    line = f"{source.text.segment(call.func.value)}.unscale_({source.text.segment(call.args[0])})"
    edit: Edit | None = source.text.insert_before(clip.statement, line)
    return Fix((edit,), safe=True, description="Unscale before clipping") if edit else None


RULE = Rule(required_words=(".backward(", "clip_grad", "scale"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.leave_out(Piece.UNSCALE)


FAILURE = Failure(
    code="PRC001",
    title="Gradients are clipped before they are unscaled",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Call scaler.unscale_(optimizer) before clipping.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
