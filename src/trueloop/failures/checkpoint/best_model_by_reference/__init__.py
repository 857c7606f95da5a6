"""The "best" model is the trained model under a second name, so training keeps changing it.

What you see
    The best model scores exactly like the last one. Early stopping brings no gain, although the validation loss was
    lower before.

Why it happens
    ``best_model = model`` copies no weights: both names stand for the same model, which the next update changes.

Fix
    Copy the model, or its weights, where you store the best one.

        best_model = model                 # wrong: a second name
        best_model = copy.deepcopy(model)  # right

When this is fine
    - The best model is a copy, or its ``state_dict`` is copied or saved to a file and loaded again.
    - Each trial or fold trains another model, and the best of them is kept.
    - Training ends with the assignment, or the name is a placeholder until the first copy.
    - The name is used only where it is assigned, for example to save the weights.

How it is detected
    In a run, the sanitizer reports an assignment ``best_model = model`` under a condition in a loop if the name is used
    elsewhere and stands for the trained model itself in at least two later updates and in the last one. The linter
    reports the same assignment if the loop updates the model and a new best value is stored with it.

References
    PyTorch tutorial "Saving and Loading Models", on references to the state of a model,
    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    copy.deepcopy, https://docs.python.org/3/library/copy.html
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.modes import is_training_step
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event, Ref, WatchEnded

MIN_UPDATES: Final = 2  # updates at which the best model is the trained one


class BestAssignment(NamedTuple):
    """An assignment such as ``best_model = model`` under a condition in a loop."""

    statement: ast.Assign
    name: str
    """The name that is assigned: "self.best_model"."""
    value: ast.expr
    """The model: ``self.model``."""
    loop: ast.For | ast.While
    condition: ast.If


def best_assignments(tree: ast.Module) -> list[BestAssignment]:
    """Return the assignments of a plain name to a name with "best" that is used outside of its condition."""
    statements = {
        id(each): each
        for each in nodes_in(tree, ast.Assign)
        if any(_is_best(target, value) for target, value in _pairs(each))
    }
    loops = [
        each for each in nodes_in(tree, ast.For, ast.While) if any(encloses(each, one) for one in statements.values())
    ]
    found = {
        id(statement): BestAssignment(statement, ast.unparse(target), value, loop, condition)
        for loop in loops  # outer ones first, so that the innermost one remains
        for condition in nodes_in(loop, ast.If)
        for statement in nodes_in(condition, ast.Assign)
        if id(statement) in statements
        for target, value in _pairs(statement)
        if _is_best(target, value)
    }
    return [each for each in found.values() if _is_used_elsewhere(tree, each)]


def _pairs(assignment: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each name or attribute that a statement assigns, with its value."""
    for target in assignment.targets:
        if isinstance(target, ast.Tuple) and isinstance(assignment.value, ast.Tuple):
            yield from zip(target.elts, assignment.value.elts, strict=False)
        elif isinstance(target, ast.Name | ast.Attribute):
            yield target, assignment.value


def _is_best(target: ast.expr, value: ast.expr) -> bool:
    name = dotted_name(target) or ast.unparse(target) if isinstance(value, ast.Name | ast.Attribute) else ""
    return "best" in name.lower()


def _is_used_elsewhere(tree: ast.Module, assignment: BestAssignment) -> bool:
    """Return True if the name is read outside of its condition, and never gets a copy or loaded weights."""
    last = assignment.name.rpartition(".")[2]
    reads = [
        each
        for each in nodes_in(tree, ast.Name, ast.Attribute)
        if last_name(each) == last
        if isinstance(each.ctx, ast.Load) and not encloses(assignment.condition, each)
    ]
    loaded = {id(each.value) for each in nodes_in(tree, ast.Attribute) if each.attr == "load_state_dict"}
    copied = any(
        last_name(target) == last and ast.unparse(target) == assignment.name and "copy" in ast.unparse(value)
        for each in nodes_in(tree, ast.Assign)
        for target, value in _pairs(each)
    )
    return bool(reads) and not copied and not any(id(each) in loaded for each in reads)


@dataclass(slots=True, kw_only=True, eq=False)
class BestModelNamed(Event):
    """A model was trained by code that assigns a best model under a condition."""

    model: Ref
    name: str
    assigned_at: SourceLocation
    is_trained_model: bool
    """Whether the name stands for the model that is trained."""


@dataclass(slots=True)
class _BestModel:
    updates: int = 0
    """Number of updates at which the name stood for the trained model."""
    update: int = -1
    is_trained_model: bool = False


class Detector(BaseDetector):
    """Counts the updates at which the name of the best model stands for the trained model."""

    def __init__(self) -> None:
        self._names: dict[tuple[SourceLocation, str], _BestModel] = {}

    def on_best_model_named(self, event: BestModelNamed) -> None:
        """Record what the name stands for."""
        known = self._names.setdefault((event.assigned_at, event.name), _BestModel())
        known.updates += event.is_trained_model and event.update != known.update
        known.update, known.is_trained_model = event.update, event.is_trained_model

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence of each name that stood for the trained model to the end."""
        return [
            Evidence(
                message=f"`{name}` is the trained model itself, not a copy: {known.updates} updates changed it after "
                "it was stored.",
                location=location,
            )
            for (location, name), known in self._names.items()
            if known.is_trained_model and known.updates >= MIN_UPDATES
        ]


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment of a model that the loop goes on to update."""
    candidates = any(_is_best(target, value) for each in source.nodes_of(ast.Assign) for target, value in _pairs(each))
    for assignment in best_assignments(source.tree) if candidates else ():
        compared = {ast.unparse(each) for each in walk(assignment.condition.test)}
        stored = {ast.unparse(each) for each in walk(assignment.condition) if _is_stored(each)}
        if not compared & stored:
            continue
        for loop in {id(each.node): each for op in source.operations for each in op.loops}.values():
            if loop.node is assignment.loop and _updates(source, loop, ast.unparse(assignment.value)):
                yield Hit(
                    message=f"`{assignment.name}` is the trained model itself, not a copy: later updates change it.",
                    node=assignment.statement,
                    fix=_deepcopy_fix(source, assignment),
                )


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)


def _updates(source: SourceFile, loop: Any, name: str) -> bool:
    """Return True if a loop updates the model with this name and never assigns the name."""
    if name in source.assigned_in(loop):
        return False
    inside = source.ops_in_loop(loop)
    models = {
        id(each.subject): each.subject
        for each in inside
        if each.kind is OpKind.MODEL_CALL and each.subject.kind is ValueKind.MODEL
        if isinstance(each.node, ast.Call) and ast.unparse(each.node.func) == name
    }.values()
    return any(is_training_step(source, step, model, inside) for model in models for step in inside)


def _deepcopy_fix(source: SourceFile, assignment: BestAssignment) -> Fix | None:
    """Return the fix that copies the model; None if the file does not import ``copy``."""
    if not any(any(n.name == "copy" for n in each.names) for each in source.nodes_of(ast.Import)):
        return None
    text = f"copy.deepcopy({source.text.segment(assignment.value)})"
    return Fix((source.text.replace(assignment.value, text),), safe=False, description="Copy the model")


BAD = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
best_loss, best_model = float("inf"), None
for epoch in range(12):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[:96]), y[:96])
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        held_out = nn.functional.mse_loss(model(x[96:]), y[96:]).item()
    if held_out < best_loss:
        best_loss = held_out
        best_model = model
with torch.no_grad():
    print(nn.functional.mse_loss(best_model(x[96:]), y[96:]).item())
"""

FAILURE = Failure(
    code="CKP006",
    title="Best model is kept without a copy",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"best_model = model\n": "best_model = copy.deepcopy(model)\n"}),
    fix="Copy the model when you store it: copy.deepcopy(model).",
    rule=Rule(required_words=("backward(", "best|Best|BEST"), find=find),
    detector=Detector,
)
