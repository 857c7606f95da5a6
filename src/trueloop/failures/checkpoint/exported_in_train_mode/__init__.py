"""A model is exported, traced or served in train mode.

What you see
    The exported model gives a different answer each time, or an answer that depends on the other samples of the batch.
    It scores worse than the original model. Calling ``eval()`` on the loaded model changes nothing.

Why it happens
    A model is in train mode by default, and an export records what the model computes at that moment, including dropout
    and batch statistics. Only recent versions of ``torch.onnx.export`` warn about it.

Fix
    Call ``model.eval()`` first. ``trueloop export`` does so, restores the modes afterwards, and compares the outputs.

        model.eval()
        program = torch.export.export(model, (example,))

When this is fine
    - You export the model in order to train the exported version, for example on a phone or with quantisation.
    - You trace the model only to count its operations.
    - The model has no layer, such as dropout or BatchNorm, that depends on the mode.

How it is detected
    In a run, the sanitizer reports a model that was exported to ONNX, or traced and saved to a file, with active
    dropout or BatchNorm in train mode. The linter reports the same for a model that is built in the file and not set to
    eval mode before the export, and a web request handler that calls such a model. ``torch.onnx.export`` with
    ``dynamo=False`` sets eval mode itself and is not reported; without a ``dynamo`` argument the finding is only a
    note. A call with ``training=`` is not reported.

References
    torch.export, https://docs.pytorch.org/docs/stable/export.html
    torch.jit.trace, "In the returned ScriptModule, operations that have different behaviors in training and eval modes
    will always behave as if it is in the mode it was in during tracing",
    https://docs.pytorch.org/docs/stable/generated/torch.jit.trace.html
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.modes import (
    MODE_DEPENDENT,
    has_mode_dependent_layers,
    may_set_mode_of,
    unresolved_mode_changes,
)
from trueloop.analysis.queries.request_handlers import handler_calls
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted_name, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event, Ref

TRACED = ("torch.jit.trace", "torch.export.export")
SAVED = ("torch.jit.save", "torch.export.save", "torch.Tensor.save", "torch.onnx.export")
ONNX = "torch.onnx.export"


@dataclass(slots=True, kw_only=True, eq=False)
class ModelExported(Event):
    """RARE. The program traced or exported a module, and the result was saved to a file or passed to ONNX.

    The event's location is the line that traced or exported the module.
    """

    model: Ref
    how: str
    """Name of the function: "torch.jit.trace", "torch.export.export", "torch.onnx.export"."""
    dropout: bool
    """Whether a dropout layer with p > 0 was in train mode when the model was exported."""
    batchnorm: bool
    """Whether a BatchNorm layer with running statistics was in train mode when the model was exported."""


class Detector(BaseDetector):
    """Checks the modes of every model that was exported."""

    def on_model_exported(self, event: ModelExported) -> Evidence | None:
        """Return evidence if dropout was active or a BatchNorm layer used batch statistics."""
        active = [name for name, is_active in (("dropout", event.dropout), ("BatchNorm", event.batchnorm)) if is_active]
        if not active:
            return None
        return Evidence(
            message=f"{event.how} recorded {event.model.name} in train mode, with active {' and '.join(active)}.",
            location=event.location,
            first_update=event.update,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield exports of models that are in train mode, and request handlers that call such a model."""
    if unresolved_mode_changes(source, "eval"):
        return
    for each in source.ops(OpKind.TORCH_CALL):
        if each.subject.kind is ValueKind.MODEL and each.name in (*TRACED, ONNX) and _in_train_mode(source, each):
            severity = _severity_of(source, each)
            if severity is not None:
                name = each.name.removeprefix("torch.")
                yield Hit(
                    message=f"{_quote(_model_name(each.node))} is in train mode when `{name}` records it.",
                    node=each.node,
                    fix=_insert_eval(source, each.statement, _model_name(each.node)),
                    severity=severity,
                )
    evaluated = [each for each in source.ops(OpKind.SET_MODE) if each.value is not True]
    for each in handler_calls(source):
        if has_mode_dependent_layers(source, each.model) and not any(
            may_set_mode_of(mode, each.model) for mode in evaluated
        ):
            name = _quote(dotted_name(each.call.func))
            message = f"{name} answers requests in train mode: dropout is active and BatchNorm uses batch statistics."
            yield Hit(message=message, node=each.call, fix=_insert_eval_after_model(source, each.model, each.call))


def _in_train_mode(source: SourceFile, export: Op) -> bool:
    """Return True if a model built in this file has mode-dependent layers and was never set to eval mode before."""
    model, run = export.subject, source.ops_of_run(export)
    before = [each for each in run if each.index < export.index]
    is_built_here = any(
        each.kind is OpKind.CREATE and each.subject is part
        for each in source.operations
        for part in _alternatives(model)
    )
    if not is_built_here or source.escapes(model, before) or not has_mode_dependent_layers(source, model):
        return False
    modes = [each for each in before if each.kind is OpKind.SET_MODE and may_set_mode_of(each, model)]
    return not modes or (modes[-1].value is True and modes[-1].subject.may_alias(model) and not modes[-1].branches)


def _alternatives(model: AbstractValue) -> list[AbstractValue]:
    return list(model.alternatives())


def _severity_of(source: SourceFile, export: Op) -> Severity | None:
    """Return the severity of saving the result to a file; None if it is not saved."""
    if export.name == ONNX:
        dynamo = export.arguments.get("dynamo")
        if "training" in export.arguments or (dynamo is not None and dynamo.constant() is False):
            return None
        return Severity.WARNING if dynamo is not None and dynamo.constant() is True else Severity.NOTE
    result = export.result
    after = [each for each in source.ops_of_run(export) if each.index > export.index and each.kind is OpKind.TORCH_CALL]
    is_saved = any(each.name in SAVED and result is not None and each.subject.may_alias(result) for each in after)
    return Severity.WARNING if is_saved else None


def _model_name(call: ast.Call) -> str:
    """Return the name of the model in the call that exports it; "" where it is not a plain name."""
    named = next((each.value for each in call.keywords if each.arg in ("func", "mod", "model")), None)
    return dotted_name(call.args[0] if call.args else named)


def _quote(name: str) -> str:
    return f"`{name}`" if name else "The model"


def _insert_eval(source: SourceFile, statement: ast.stmt | None, model: str) -> Fix | None:
    if not model or not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return | ast.With):
        return None
    edit = source.text.insert_before(statement, f"{model}.eval()")
    return Fix((edit,), safe=False, description=f"Insert {model}.eval()") if edit else None


def _insert_eval_after_model(source: SourceFile, model: AbstractValue, call: ast.Call) -> Fix | None:
    """Return the fix: set eval mode directly after the line that builds the model."""
    name = dotted_name(call.func)
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign) and any(node is model.node for node in walk(statement)):
            edit = source.text.insert_after(statement, f"{name}.eval()")
            return Fix((edit,), safe=False, description=f"Insert {name}.eval()") if edit else None
    return None


EXPORTS = (
    "jit.trace(|torch.jit import|torch.jit as|export.export(|torch.export import|torch.export as|onnx.export("
    "|torch.onnx import|torch.onnx as"
)
SERVES = "FastAPI|APIRouter|Flask|Blueprint|Quart|Sanic|Starlette|Litestar"

RULE = Rule(required_words=(f"{EXPORTS}|{SERVES}", MODE_DEPENDENT, "torch"), find=find)


BAD = """
import os
import tempfile
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
program = torch.export.export(model, (torch.randn(3, 4),))
with tempfile.TemporaryDirectory() as folder:
    torch.export.save(program, os.path.join(folder, "model.pt2"))
"""

FAILURE = Failure(
    code="CKP004",
    title="Model is exported in train mode",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "program = torch.export.export(model, (torch.randn(3, 4),))": (
                "model.eval()\nprogram = torch.export.export(model, (torch.randn(3, 4),))"
            )
        },
    ),
    fix="Call model.eval() before the export.",
    rule=RULE,
    detector=Detector,
)
