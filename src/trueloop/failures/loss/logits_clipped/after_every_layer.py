"""Finds models whose last layer is followed by an activation because a loop applies it after every layer."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.trained_models import TrainedModel, output_layers, returned_by_forward, trained_models
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_LOSSES: Final = frozenset((
    "CrossEntropyLoss", "cross_entropy", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits",
))  # fmt: skip
_ACTIVATION: Final = re.compile(
    r"relu6?|leaky_relu|tanh|sigmoid|gelu|elu|selu|silu|(non_?lin(earity)?|act(ivation)?)(_?(fn|func|function|layer))?",
    re.IGNORECASE,
)
SMOOTH: Final = ("ELU", "SELU", "CELU", "GELU", "SiLU")
"""Activations whose results are never far below 0."""
_LAYERS: Final = frozenset(("ReLU", "ReLU6", "Tanh", *SMOOTH))
_KEEPING: Final = re.compile(r"drop|contiguous|flatten|squeeze|view|reshape", re.IGNORECASE)
_NO_ACTIVATION: Final = re.compile(r"Identity|lambda|None|[Ss]oftmax")


class Activation(NamedTuple):
    """An activation between the last layer of a model and the loss."""

    loss: ast.Call
    node: ast.Call
    """The call of the activation, or of the class of its layer."""
    in_loop: bool


def activations_after_every_layer(source: SourceFile) -> Iterator[Activation]:
    """Yield the activations that the logits of a loss have passed as the last operation of a model."""
    for loss, models in trained_models(source, _LOSSES):
        applied = [_applied_in_loop(source, each) for each in models]
        layers = [layer for each in models for layer in output_layers(source, each)]
        if applied[0] is not None and all(each is not None for each in applied):
            yield Activation(loss, applied[0], in_loop=True)
        elif layers[0] is not None and all(each and last_name(each.func) in _LAYERS for each in layers):
            yield Activation(loss, layers[0], in_loop=False)


def _applied_in_loop(source: SourceFile, model: TrainedModel) -> ast.Call | None:
    """Return the activation that a loop over all layers applies to the only output of a model."""
    returned = returned_by_forward(model.definition) if model.definition is not None else []
    if len(returned) != 1:
        return None
    value = returned[0]
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            method = definitions(source).functions.get(name)
            results = [each.value for each in nodes_in(method, ast.Return)] if method is not None else []
            value = results[0] if len(results) == 1 and results[0] is not None else value
        case _:
            pass
    if not isinstance(value, ast.Name):
        return None
    statement: Any = source.statement_of(value)
    block = source.block(statement)
    before = [each for each in block[: block.index(statement)] if _stores(each, value.id)]
    last = before[-1] if before else None
    return _activation(source, last, value.id) if isinstance(last, ast.For) else None


def _stores(statement: ast.stmt, name: str) -> bool:
    return any(each.id == name and isinstance(each.ctx, ast.Store) for each in nodes_in(statement, ast.Name))


def _activation(source: SourceFile, loop: ast.For, name: str) -> ast.Call | None:
    """Return the call of the activation in ``for layer in self.layers: x = F.relu(layer(x))``; None for other loops."""
    is_over_layers = isinstance(loop.iter, ast.Attribute) and isinstance(loop.target, ast.Name)
    values = [each.value for each in loop.body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name]
    calls = [each for each in values if isinstance(each, ast.Call)]
    if not is_over_layers or not calls or len(calls) != len(loop.body):
        return None
    applied = [call for value in calls for call in _outermost_last(value)]
    while len(applied) > 1 and _KEEPING.search(last_name(applied[-1].func)):
        applied.pop()
    *before, last = applied
    is_after_layer = ast.unparse(loop.target) in [last_name(each.func) for each in before]
    is_other = any(_NO_ACTIVATION.search(ast.unparse(each)) for each in origins(source, last.func))
    return last if is_after_layer and _ACTIVATION.fullmatch(last_name(last.func)) and not is_other else None


def _outermost_last(value: ast.Call) -> list[ast.Call]:
    """Return the calls of ``F.relu(layer(x))`` in the order in which they run."""
    owner = getattr(value.func, "value", None)  # layer(x) of layer(x).relu()
    inner = owner if isinstance(owner, ast.Call) or not value.args else value.args[0]
    return [*(_outermost_last(inner) if isinstance(inner, ast.Call) else []), value]
