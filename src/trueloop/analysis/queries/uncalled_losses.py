"""Finds the one loss and the one model that a file creates for each other and leaves the training to other code."""

import ast
from collections.abc import Container
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.activations import VIEWS
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import nodes_in

_CONTAINERS: Final = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
_HARMLESS: Final = frozenset(("print", "summary", "len", "str", "repr"))
"""Functions that get a model and train nothing."""


class UncalledLoss(NamedTuple):
    """A loss that nothing in the file calls, and what the only model of the file computes last."""

    loss: Op
    """Creation of the loss."""
    model: Op
    """Creation of the model."""
    origin: AbstractValue
    """The operation or layer that computes the output of the model."""


def uncalled_loss(source: SourceFile, names: Container[str]) -> UncalledLoss | None:
    """Return the only loss of a file, if it has one of some names and nothing uses it, with the output of the model.

    None if the file creates several losses or models at module level, calls them, or passes them to other code.
    """
    created = [each for each in source.ops(OpKind.CREATE) if each.function is None and each.entry_point == 0]
    losses = [each for each in created if each.subject.kind is ValueKind.LOSS]
    models = [each for each in created if each.subject.kind is ValueKind.MODEL and _variable(source, each)]
    if len(losses) != 1 or len(models) != 1 or losses[0].name not in names:
        return None
    if any(_is_used(source, each) for each in (*losses, *models)):
        return None
    loss, model = losses[0], models[0]
    origin = _output(source, model.subject) if _variable(source, loss) else None
    return None if origin is None else UncalledLoss(loss, model, origin)


def _variable(source: SourceFile, creation: Op) -> str:
    """Return the variable that a created object is assigned to; "" if it is a part of an expression."""
    node, parent = creation.node, source.parents.get(id(creation.node))
    while isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is node):
        node, parent = parent, source.parents.get(id(parent))  # Net().to(device)
    targets: list[Any] = parent.targets if isinstance(parent, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _is_used(source: SourceFile, creation: Op) -> bool:
    """Return True if the file calls an object, passes it on, or assigns its variable again."""
    name, stores = _variable(source, creation), 0
    for each in source.nodes_of(ast.Name):
        if each.id != name:
            continue
        if not isinstance(each.ctx, ast.Load):
            stores += 1
            continue
        parent = source.parents.get(id(each))
        is_shown = isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in _HARMLESS
        if not isinstance(parent, ast.Attribute) and not is_shown:
            return True
    return stores > 1


def _output(source: SourceFile, model: AbstractValue) -> AbstractValue | None:
    """Return the operation or layer that computes the output of a model; None if it is not certain."""
    if model.name in _CONTAINERS:
        last = model.last_layer()
        return None if last is model else last
    definition = model.scope.node if isinstance(model.scope, AbstractValue) else None
    body: list[Any] = getattr(definition, "body", [])
    forward = next((each for each in body if isinstance(each, ast.FunctionDef) and each.name == "forward"), None)
    returned = [] if forward is None else nodes_in(forward, ast.Return)
    if forward is None or len(returned) > 1:
        return None
    last: Any = returned[0] if returned else forward.body[-1]  # a fragment may leave out the end of a method
    output = last.value if isinstance(last, ast.Return | ast.Assign) else None
    if output is None:
        return None
    results = {id(each.node): each.result for each in source.operations if each.result is not None}
    for value in origins(source, output):
        result = results.get(id(value))
        if result is not None:
            return result.origin(VIEWS)
    return None
