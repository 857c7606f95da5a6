"""A GradScaler is at work though the model runs in bfloat16.

What you see
    None at first. Steps are left out now and then, the loss scale wanders, and time goes into unscaling and checking.

Why it happens
    Multiplying the loss and dividing the gradients by the same number changes nothing but roundings.

Fix
    Leave the scaler out with bfloat16: ``GradScaler(enabled=dtype == torch.float16)``.

When this is fine
    A scaler that is switched off (``enabled=False``) is the usual way to have one code for all types. It is told only
    where an enabled one scaled a loss whose model had run under autocast to bfloat16, which has float32's range: there
    is no underflow to guard against. The text alone tells it of a scaler without ``enabled``, and of a loss whose
    models were called under an autocast that says bfloat16, and under no other.

References
    PyTorch documentation "Automatic Mixed Precision package", section on gradient scaling,
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import scales
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix, SourceText
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, LossScaled


class Detector(failure.Detector):
    """Every scaled loss tells what type its model ran in."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (LossScaled,)

    def observe(self, event: LossScaled) -> Evidence | None:
        """Return evidence where that is bfloat16."""
        if not event.enabled or event.autocast != "bfloat16":
            return None
        factor = f" by {event.scale:g}" if event.scale else ""
        return Evidence(
            message=f"GradScaler multiplies the loss{factor}, though the model ran in bfloat16, which has the range of "
            "float32.",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each scaling of a loss that was computed in bfloat16, by a scaler that is always on."""
    scalings = [each for each in source.ops(OpKind.SCALE_LOSS) if scales(each.subject)]
    halves = {id(each): _half(source, each) for each in scalings}
    for scaling in scalings:
        called = halves[id(scaling)]
        if called is None:
            continue
        others = [each for each in scalings if each.subject is scaling.subject]
        whole = all(halves[id(each)] is not None for each in others)
        yield Hit(
            message="GradScaler multiplies a loss whose model runs in bfloat16, which has the range of float32.",
            node=scaling.node,
            related=((called.node, "runs under autocast to bfloat16"),),
            fix=_switched_off(source.text, scaling.subject) if whole else None,
        )


def _half(source: SourceFile, scaling: Op) -> Op | None:
    """Return a call of a model in bfloat16 that a loss comes from, if none was in another type."""
    found: Op | None = None
    for thing in scaling.inputs[0].autograd_graph() if scaling.inputs else ():
        made = source.created_by.get(id(thing))
        if made is None or made.kind not in (OpKind.MODEL_CALL, OpKind.FORWARD_CALL):
            continue
        if made.autocast not in (None, "torch.bfloat16"):
            return None
        found = made if made.autocast else found
    return found


def _switched_off(text: SourceText, scaler: AbstractValue) -> Fix | None:
    """Return the fix: ``enabled=False``, which leaves the rest of the program as it is."""
    call = scaler.node
    if not isinstance(call, ast.Call) or any(each.arg is None for each in call.keywords):
        return None
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    given = next((each.value for each in call.keywords if each.arg == "enabled"), None)
    if given is not None:
        return Fix((text.replace(given, "False"),), safe=True, description="Switch the scaler off")
    arguments = [*call.args, *(each.value for each in call.keywords)]
    if not arguments:
        _, end = text.span(call)
        empty = Edit(end - 1, end - 1, "enabled=False")
        return Fix((empty,), safe=True, description="Switch the scaler off") if text.segment(call).endswith("()") else None
    _, end = text.span(max(arguments, key=lambda each: text.span(each)[1]))
    if text.content[end : end + 1] not in (b")", b","):
        return None  # in parentheses of its own
    return Fix((Edit(end, end, ", enabled=False"),), safe=True, description="Switch the scaler off")


RULE = Rule(required_words=("GradScaler", "autocast", "scale"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["precision"] == "float16", "There is no GradScaler.", precision="float16")
    loop.replace(Piece.FORWARD, "torch.float16", "torch.bfloat16")


FAILURE = Failure(
    code="PRC002",
    title="A GradScaler without float16",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
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
scaler = torch.amp.GradScaler("cpu", enabled=False)
for step in range(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Leave GradScaler out, or switch it off, where the model runs in bfloat16.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
