"""A model answers requests with gradients enabled.

What you see
    A service needs more memory than its model and its batch explain, and each answer takes longer than necessary,
    especially with deep models. The answers are correct.

Why it happens
    ``model.eval()`` changes dropout and BatchNorm layers but does not switch autograd off. Each request builds an
    autograd graph and keeps all activations for a backward pass that never runs.

Fix
    Call the model under ``torch.inference_mode()``.

        with torch.inference_mode():
            scores = model(inputs)

    This is even a little faster than ``torch.no_grad()`` (EVL007). ``trueloop serve`` does it for every request, and
    benchmarks/serving.py compares the speed.

When this is fine
    - The handler needs gradients, to explain an answer (saliency) or to adapt the model.
    - All parameters of the model are frozen, so no graph is built.

How it is detected
    Only the linter finds it, from the source code: a request handler of FastAPI, Flask or a similar framework calls a
    model that is created in the file, directly or through functions of the file, without ``no_grad``,
    ``inference_mode`` or another context manager. The file must not use gradients anywhere. This is a note.

References
    Autograd mechanics, "Locally disabling gradient computation",
    https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.autograd.grad_mode.inference_mode,
    https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.request_handlers import (
    NO_GRAD_CONTEXTS,
    HandlerCall,
    handler_calls,
    imported_names,
    qualified_name,
)
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

GRADIENT_ATTRIBUTES = ("backward", "grad", "requires_grad_", "set_grad_enabled", "requires_grad")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the model calls that a request handler runs with gradients enabled."""
    if _uses_gradients(source):
        return
    for each in handler_calls(source):
        if each.grad:
            message = f"`{ast.unparse(each.call)}` builds an autograd graph for each request, and nothing uses it."
            yield Hit(message=message, node=each.call, fix=_inference_mode_fix(source, each))


def _uses_gradients(source: SourceFile) -> bool:
    """Return True if the file uses gradients, or switches them off globally or inside a model."""
    if source.ops(OpKind.BACKWARD, OpKind.SET_REQUIRES_GRAD, OpKind.STEP):
        return True
    classes = list(source.nodes_of(ast.ClassDef))
    attributes = {node.attr for node in source.nodes_of(ast.Attribute)}
    names = imported_names(source.tree)
    inside = {qualified_name(node, names) for each in classes for node in nodes_in(each, ast.Attribute, ast.Name)}
    return bool(attributes & set(GRADIENT_ATTRIBUTES)) or bool(inside & NO_GRAD_CONTEXTS)


def _inference_mode_fix(source: SourceFile, each: HandlerCall) -> Fix | None:
    torch = next(
        (alias.asname or alias.name for node in source.tree.body if isinstance(node, ast.Import)
         for alias in node.names if alias.name == "torch"), ""
    )  # fmt: skip
    if not torch or not isinstance(each.statement, ast.Assign | ast.Return | ast.Expr | ast.AnnAssign):
        return None
    edits = source.text.indent_under(each.statement, f"with {torch}.inference_mode():")
    return Fix(edits, safe=False, description="Call the model under inference_mode") if edits else None


RULE = Rule(required_words=("FastAPI|APIRouter|Flask|Blueprint|Quart|Sanic|Starlette|Litestar", "torch"), find=find)


BAD = """
import torch
from flask import Flask, request
from torch import nn

app = Flask(__name__)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
model.eval()

@app.post("/predict")
def predict():
    scores = model(torch.tensor(request.json))
    return {"scores": scores.tolist()}

print(app.test_client().post("/predict", json=[[1.0, 2.0, 3.0, 4.0]]).json)
"""

FAILURE = Failure(
    code="ENV005",
    title="Inference requests run with gradients enabled",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(
        BAD,
        {
            "scores = model(torch.tensor(request.json))": (
                "with torch.inference_mode():\n        scores = model(torch.tensor(request.json))"
            )
        },
    ),
    fix="Call the model under torch.inference_mode().",
    rule=RULE,
)
