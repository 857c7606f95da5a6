"""A model is exported, traced or served while it is in train mode.

What you see
    The exported model gives another answer every time, or one that depends on what else is in the batch, and measures
    worse than the model it was made of. ``eval()`` on what was loaded changes nothing.

Why it happens
    Train mode is the default, and an export records what the model does at that moment: dropout at work, and batch
    normalisation by the statistics of the batch, are operations like any other. The newest ``torch.onnx.export`` warns,
    among other warnings; ``torch.jit.trace`` and ``torch.export`` do not.

Fix
    Call ``model.eval()`` before. `trueloop export` does it, puts every mode back, and proves that the answers are those
    of the live model.

When this is fine
    A graph exported in train mode to go on training on a device, or for quantisation-aware training, is not a mistake;
    nor is a trace that only counts operations. Models on which the mode has no influence may be in any. It is told of
    a running program where a module with dropout or batch normalisation at work was traced or exported and the result
    was then written to a file, or where it went to ONNX. The text shows the same for a model that the file makes and
    whose mode it never sets to eval before, and a handler of web requests that calls such a model. Hence a warning. The
    older ``torch.onnx.export`` (``dynamo=False``) sets eval mode by itself, so where ``dynamo`` is not given it is a
    note; with ``training=`` given it was asked for.

References
    torch.export, https://docs.pytorch.org/docs/stable/export.html
    torch.jit.trace, "In the returned ScriptModule, operations that have different behaviors in training and eval modes
    will always behave as if it is in the mode it was in during tracing",
    https://docs.pytorch.org/docs/stable/generated/torch.jit.trace.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.modes import LIVELY, lively, touches, unread
from trueloop.analysis.queries.request_handlers import served
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import Event, ModelExported

TRACED = ("torch.jit.trace", "torch.export.export")
SAVED = ("torch.jit.save", "torch.export.save", "torch.Tensor.save", "torch.onnx.export")
ONNX = "torch.onnx.export"


class Detector(failure.Detector):
    """Looks at the modes of every model that was exported."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (ModelExported,)

    def __init__(self) -> None:
        self._seen = 0

    def observe(self, event: ModelExported) -> Evidence | None:
        """Return evidence where dropout or batch normalisation were at work."""
        self._seen += 1
        at_work = [word for word, on in (("dropout", event.dropout), ("batch normalisation", event.batchnorm)) if on]
        if not at_work:
            return None
        return Evidence(
            message=f"{event.model.name} went through {event.how} in train mode, with {' and '.join(at_work)} at work.",
            location=event.place,
            update=event.update,
        )

    def inconclusive(self) -> str:
        """Return a reason where nothing was exported."""
        return "" if self._seen else "no model was exported and written"


def find(source: Source) -> Iterator[Hit]:
    """Yield exports of models that the text leaves in train mode, and handlers that call one."""
    if unread(source, "eval"):
        return
    for each in source.acts(OpKind.TORCH):
        if each.subject.kind is Kind.MODEL and each.word in (*TRACED, ONNX) and _in_train_mode(source, each):
            severity = _written(source, each)
            if severity is not None:
                name = each.word.removeprefix("torch.")
                yield Hit(
                    message=f"The model is in train mode when {name} records what it does.",
                    node=each.node,
                    fix=_fix(source, each.statement, _given(each.node)),
                    severity=severity,
                )
    evaluated = [each for each in source.acts(OpKind.MODE) if each.value is not True]
    for each in served(source):
        if lively(source, each.model) and not any(touches(mode, each.model) for mode in evaluated):
            message = "The model answers requests in train mode: dropout and batch statistics are at work."
            yield Hit(message=message, node=each.call, fix=_served_fix(source, each.model, each.call))


def _in_train_mode(source: Source, export: Op) -> bool:
    """True where a model that this file makes has dropout or the like, and no mode but train before."""
    model, run = export.subject, source.run_of(export)
    before = [each for each in run if each.index < export.index]
    made = any(each.act is OpKind.MADE and each.subject is part for each in source.operations for part in _ways(model))
    if not made or source.handed_out(model, before) or not lively(source, model):
        return False
    modes = [each for each in before if each.act is OpKind.MODE and touches(each, model)]
    return not modes or (modes[-1].value is True and modes[-1].subject.may_be(model) and not modes[-1].branches)


def _ways(model: AbstractValue) -> list[AbstractValue]:
    return list(model.alternatives())


def _written(source: Source, export: Op) -> Severity | None:
    """Return how grave it is that the result goes to a file; None where it does not."""
    if export.word == ONNX:
        dynamo = export.options.get("dynamo")
        if "training" in export.options or (dynamo is not None and dynamo.constant() is False):
            return None
        return Severity.WARNING if dynamo is not None and dynamo.constant() is True else Severity.NOTE
    result = export.result
    after = [each for each in source.run_of(export) if each.index > export.index and each.act is OpKind.TORCH]
    written = any(each.word in SAVED and result is not None and each.subject.may_be(result) for each in after)
    return Severity.WARNING if written else None


def _given(call: ast.Call) -> str:
    """Return how the model is written in a call that exports it; "" where that is no plain name."""
    named = next((each.value for each in call.keywords if each.arg in ("func", "mod", "model")), None)
    return dotted(call.args[0] if call.args else named)


def _fix(source: Source, statement: ast.stmt | None, model: str) -> Fix | None:
    if not model or not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return | ast.With):
        return None
    edit = source.text.before(statement, f"{model}.eval()")
    return Fix((edit,), safe=False, words=f"Insert {model}.eval()") if edit else None


def _served_fix(source: Source, model: AbstractValue, call: ast.Call) -> Fix | None:
    """Set eval mode right behind the line that makes the model."""
    name = dotted(call.func)
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign) and any(node is model.node for node in ast.walk(statement)):
            edit = source.text.after(statement, f"{name}.eval()")
            return Fix((edit,), safe=False, words=f"Insert {name}.eval()") if edit else None
    return None


EXPORTS = (
    "jit.trace(|torch.jit import|torch.jit as|export.export(|torch.export import|torch.export as|onnx.export("
    "|torch.onnx import|torch.onnx as"
)
SERVES = "FastAPI|APIRouter|Flask|Blueprint|Quart|Sanic|Starlette|Litestar"

RULE = Rule(words=(f"{EXPORTS}|{SERVES}", LIVELY, "torch"), find=find)


FAILURE = Failure(
    code="CKP004",
    title="A model is exported in train mode",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import os
import tempfile
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
program = torch.export.export(model, (torch.randn(3, 4),))
with tempfile.TemporaryDirectory() as folder:
    torch.export.save(program, os.path.join(folder, "model.pt2"))
""",
    good="""
import os
import tempfile
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
model.eval()
program = torch.export.export(model, (torch.randn(3, 4),))
with tempfile.TemporaryDirectory() as folder:
    torch.export.save(program, os.path.join(folder, "model.pt2"))
""",
    fix="Call model.eval() before it is exported.",
    rule=RULE,
    detector=Detector,
)
