"""The optimizer steps with gradients that are still multiplied by GradScaler's factor.

What you see
    With SGD training explodes at once. With Adam nothing is seen for long: it divides the factor out again, and only
    epsilon, clipping, weight decay that is added to the gradient, and steps with infinities in them are wrong.

Why it happens
    ``optimizer.step()`` knows nothing of the scaler that multiplied the loss by 65536; only ``scaler.step(optimizer)``
    divides the gradients, and leaves a step out where they are infinite.

Fix
    ``scaler.step(optimizer)`` instead of ``optimizer.step()``, and ``scaler.update()`` after it.

When this is fine
    ``scaler.unscale_(optimizer)`` before ``optimizer.step()``, gradients that are divided by hand, a scaler that is
    switched off, and losses that were never scaled are all right. A program that asks for the factor between backward
    and step may divide by it in a way that cannot be seen, and is left alone. Some multiply on purpose, trusting
    Adam: they silence it. It is told the second time. The text alone tells it where a backward through a scaler that is
    not switched off reaches the optimizer's parameters, and nothing between them unscales or is unknown.

References
    Gradient scaling, https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    nerfstudio-project/nerfacc#307, "uses the GradScaler, but only for scaling the loss and not for the update step":
    "the gradients are now 1024x larger than they should be", https://github.com/nerfstudio-project/nerfacc/issues/307
    IAHispano/Applio#860, "You should not use optim.step() directly when you're working with GradScaler",
    https://github.com/IAHispano/Applio/pull/860
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar, Final

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import scaler_of, scales
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import Edit, Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, LossScaled, StepTaken

TIMES: Final = 2  # once might be a probe
BETWEEN: Final = (OpKind.UNSCALE, OpKind.ACCESS_GRADIENTS, OpKind.CLIP_GRADIENTS, OpKind.STEP, OpKind.CLEAR_GRADIENTS, OpKind.ESCAPE)
"""After any of these nobody knows what the gradients are multiplied by."""


class Detector(failure.Detector):
    """Every step tells which of its gradients are scaled."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LossScaled, StepTaken)
    activated_by: ClassVar[tuple[type[Event], ...]] = (LossScaled,)

    def __init__(self) -> None:
        self._scale: float | None = None
        self._times: Counter[CodePosition | None] = Counter()

    def observe(self, event: LossScaled | StepTaken) -> Evidence | None:
        """Return evidence where a line has stepped scaled gradients again and again, without the scaler."""
        if isinstance(event, LossScaled):
            self._scale = event.scale
            return None
        if not event.still_scaled or event.scaler is not None or self._scale == 1:
            return None
        self._times[event.location] += 1
        if self._times[event.location] < TIMES:
            return None
        by = f" by {self._scale:g}" if self._scale else ""
        return Evidence(
            message=f"This step used {format_count(len(event.still_scaled), 'gradient')} that GradScaler still had "
            f"multiplied{by}.",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each plain step of what a scaled backward has made, with nothing in between that unscales it."""
    if any(getattr(each.func, "attr", "") == "get_scale" for each in source.all_calls):
        return
    for step in source.ops(OpKind.STEP):
        optimizer = step.subject
        if step.inputs or step.value is not None or optimizer.kind is not ValueKind.OPTIMIZER or MANAGED in optimizer.facts:
            continue
        backward = _scaled(source, step)
        if backward is not None:
            yield Hit(
                message="The optimizer steps with gradients that GradScaler still has multiplied by its factor.",
                node=step.node,
                related=((backward.node, "the scaled loss goes backward here"),),
                fix=_by_the_scaler(source, step, backward),
            )


def _scaled(source: SourceFile, step: Op) -> Op | None:
    """Return the last backward before a step, if it surely was scaled, and nothing has unscaled it."""
    run = source.ops_of_run(step)
    for each in reversed(run[: run.index(step)]):
        if each.kind in BETWEEN and not each.excludes(step):
            return None
        if each.kind is OpKind.BACKWARD and not each.excludes(step):
            scaler = scaler_of(each)
            reached = step.subject.models() and source.reaches(each, step.subject)
            known = scaler is not None and scales(scaler) and each.implied_by(step)
            return each if reached and known else None
    return None


def _by_the_scaler(source: SourceFile, step: Op, backward: Op) -> Fix | None:
    """Return the fix: let the scaler step, and update it where nobody does."""
    call, statement = step.node, step.statement
    scaling = [each for each in ast.walk(backward.node) if isinstance(each, ast.Call)]
    names = [each.func.value for each in scaling if isinstance(each.func, ast.Attribute) and each.func.attr == "scale"]
    plain = isinstance(statement, ast.Expr) and statement.value is call and isinstance(call.func, ast.Attribute)
    if (
        statement is None
        or len(names) != 1
        or not plain
        or call.args
        or call.keywords
        or backward.function is not step.function
    ):
        return None
    scaler = source.text.segment(names[0])
    edits: tuple[Edit | None, ...] = (source.text.replace(call, f"{scaler}.step({source.text.segment(call.func.value)})"),)
    if not any(each.kind is OpKind.SCALER_UPDATE for each in source.ops_of_run(step)):
        edits = (*edits, source.text.insert_after(statement, f"{scaler}.update()"))
    known = tuple(each for each in edits if each is not None)
    return Fix(known, safe=False, description="Let the scaler step") if len(known) == len(edits) else None


RULE = Rule(required_words=("backward(", ".step(", "scale"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    wanted = {"precision": "float16", "clip": 0.0, "optimizer": "adam"}  # it explodes at once with another
    possible = all(loop.settings[name] == value for name, value in wanted.items())
    loop.require(possible, "There is no GradScaler, or gradients are unscaled to be clipped.", **wanted)
    loop.replace(Piece.UPDATE, "scaler.step(optimizer)\nscaler.update()", "optimizer.step()")


FAILURE = Failure(
    code="PRC005",
    title="The optimizer steps past the GradScaler",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Call scaler.step(optimizer) and scaler.update() instead of optimizer.step().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
