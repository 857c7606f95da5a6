"""Finds the models whose outputs a loss gets, also in other files, and the layers that compute these outputs last."""

import ast
from collections.abc import Container, Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import is_loss_call
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import is_without_gradients, origins, possible_values
from trueloop.analysis.queries.td_targets import without_views
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in

_HEADS: Final = ("fc", "classifier", "head", "heads", "last_linear", "_fc")
"""Attributes of the models of libraries that compute their output."""


class TrainedModel(NamedTuple):
    """What creates a model whose output a loss gets."""

    created: ast.Call
    """The call of its class, which the program or a library defines."""
    definition: ast.ClassDef | None
    """The class; None for one of a library."""


def trained_models(source: SourceFile, losses: Container[str]) -> Iterator[tuple[ast.Call, list[TrainedModel]]]:
    """Yield each call of a loss that gets the output of a model directly, with all models that this may be.

    Args:
        source: the file.
        losses: last names of the losses: "CrossEntropyLoss".
    """
    for call in source.all_calls:
        if not call.args or not is_loss_call(source, call) or not _is_one_of(source, call, losses):
            continue
        values = [without_views(each) for each in origins(source, call.args[0])]
        outputs = [each for each in values if isinstance(each, ast.Call)]
        found = next((models for each in outputs if (models := list(_models(source, each)))), [])
        if found and not is_without_gradients(source, call):
            yield call, found


def _is_one_of(source: SourceFile, call: ast.Call, losses: Container[str]) -> bool:
    """Return True if each class that a called loss may have is one of some losses."""
    made = [each for value in origins(source, call.func) for each in (unwrapped(value),)]
    names = [last_name(each.func) for each in made if isinstance(each, ast.Call)] or [last_name(call.func)]
    return all(each in losses for each in names)


def unwrapped(node: ast.expr) -> ast.expr:
    """Return the call that creates a module: ``Net()`` of ``Net().to(device)``, ``DataParallel(Net())``."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            node = node.func.value
        elif last_name(node.func) in ("DataParallel", "DistributedDataParallel", "compile") and node.args:
            node = node.args[0]
        else:
            break
    return node


def _models(source: SourceFile, output: ast.Call) -> Iterator[TrainedModel]:
    """Yield what may create the model that a call runs; nothing unless the program shows it."""
    known = definitions(source).classes
    for value in origins(source, output.func):
        created = unwrapped(value)
        if isinstance(created, ast.Call):
            definition = known.get(last_name(created.func))
            if definition is not None or source.qualified_name(created.func).startswith("torch"):
                yield TrainedModel(created, definition)


def returned_by_forward(definition: ast.ClassDef) -> list[ast.expr]:
    """Return the values that the ``forward`` of a class returns."""
    methods = [e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == "forward"]
    return [each.value for method in methods for each in nodes_in(method, ast.Return) if each.value is not None]


def output_layers(source: SourceFile, model: TrainedModel) -> list[ast.Call | None]:
    """Return the layers that may compute the output of a model last; None for each that is unknown."""
    if model.definition is None:
        is_list = any(isinstance(each, ast.Starred) for each in model.created.args)
        made: list[ast.expr] = [model.created] if is_list else _heads(source, model.created)
        return [last_layer_of(source, each) for each in made] or [None]
    layers: list[ast.Call | None] = []
    for value in returned_by_forward(model.definition):
        for output in [value] if isinstance(value, ast.Call) else possible_values(source, value) or [value]:
            match without_views(output):
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                    layers += _layers_of_attribute(source, model.definition, name) or [None]
                case _:
                    layers.append(None)
    return layers or [None]


def _layers_of_attribute(source: SourceFile, definition: ast.ClassDef, name: str) -> list[ast.Call | None]:
    """Return the last layers of what ``self.name`` may be; [] if it is unknown which of several modules it is."""
    made, heads = _stored(source, definition, name), _heads(source, name, definition)
    is_replaced = heads and any(last_layer_of(source, each) is not None for each in made)
    return [] if is_replaced else [last_layer_of(source, each) for each in heads or made]


def _stored(source: SourceFile, definition: ast.ClassDef, name: str) -> list[ast.expr]:
    """Return what a class assigns to ``self.name``."""
    return [
        value
        for each in definitions(source).attributes.get(name, ())
        if isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self" and encloses(definition, each)
        if (value := getattr(source.parents.get(id(each)), "value", None)) is not None
    ]


def _heads(source: SourceFile, model: ast.Call | str, definition: ast.ClassDef | None = None) -> list[ast.expr]:
    """Return what a program assigns to the head of a model of a library, or of the one in ``self.<model>``."""
    found: list[ast.expr] = []
    for head in (e for name in _HEADS for e in definitions(source).attributes.get(name, ())):
        target: Any = head
        parent = source.parents.get(id(head))
        if isinstance(parent, ast.Subscript) and parent.value is head:  # model.classifier[6] = ...
            target, parent = parent, source.parents.get(id(parent))
        if not isinstance(parent, ast.Assign) or target not in parent.targets:
            continue
        if isinstance(model, str):
            is_own = (
                definition is not None and encloses(definition, head) and ast.unparse(head.value) == f"self.{model}"
            )
        else:
            is_own = any(unwrapped(each) is model for each in origins(source, head.value))
        found += [parent.value] if is_own else []
    return found


def last_layer_of(source: SourceFile, layers: ast.expr) -> ast.Call | None:
    """Return the call that creates the last layer of ``Sequential(a, b)``, or of ``Sequential(*layers)`` with a list.

    None if it is unknown, or if what the list gets last depends on a condition that the ``Sequential`` does not.
    """
    made = [e for e in origins(source, layers) if isinstance(e, ast.Call) and last_name(e.func) == "Sequential"]
    if not made or not made[0].args:
        return None
    last: Any = made[0].args[-1]
    if isinstance(last, ast.Starred) and isinstance(last.value, ast.Name):
        last = _last_appended(source, made[0], last.value.id)
    match last:
        case ast.Call(func=func, args=[ast.List(elts=[*_, ast.Tuple(elts=[_, layer])])]) if (
            last_name(func) == "OrderedDict"
        ):
            last = layer
        case _:
            pass
    inner = last_layer_of(source, last) if isinstance(last, ast.Call) else None
    return inner or (last if isinstance(last, ast.Call) else None)


def _last_appended(source: SourceFile, layers: ast.Call, name: str) -> Any:
    """Return what a list of layers gets last, in a statement of the same block before its use, or of one around it."""
    statement: Any = source.statement_of(layers)
    while statement is not None and not isinstance(statement, ast.FunctionDef | ast.Module):
        block = source.block(statement)
        for each in reversed(block[: block.index(statement)] if statement in block else []):
            if any(part.id == name for part in nodes_in(each, ast.Name)):
                return _appended(each, name)
        statement = source.parents.get(id(statement))
    return None


def _appended(statement: ast.stmt, name: str) -> Any:
    """Return the layer that a statement adds to a list last, perhaps in each iteration of a loop."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(), attr="append"), args=[layer])):
            return layer
        case (
            ast.Assign(value=ast.List(elts=[*_, layer]))
            | ast.AugAssign(value=ast.List(elts=[*_, layer]))
            | ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(), attr="extend"), args=[ast.List(elts=[*_, layer])])
            )
        ):
            return layer
        case ast.For(body=body):
            changes = [each for each in body if any(part.id == name for part in nodes_in(each, ast.Name))]
            return _appended(changes[-1], name) if changes else None
        case _:
            return None
