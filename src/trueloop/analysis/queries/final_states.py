"""Finds the final states of recurrent layers, and which of them a program reads."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.queries.batch_first import RECURRENT
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import integer, nodes_in


class FinalStates(NamedTuple):
    """The final states of a call of a recurrent layer, of which only items are read, and no time step is."""

    layer: AbstractValue
    read: Mapping[int | None, ast.expr]
    """Index of an item -> the expression that reads it."""

    def layers(self) -> int:
        """Return the number of layers; 1 if it is unknown."""
        given = self.layer.arguments.get("num_layers") or self.layer.arguments.get("2")
        number = given.constant() if given is not None else 1
        return number if isinstance(number, int) else 1

    def is_bidirectional(self) -> bool | None:
        """Return whether the layer has two directions; None if it is unknown."""
        given = self.layer.arguments.get("bidirectional")
        value = given.constant() if given is not None else False
        return value if isinstance(value, bool) else None


def final_states(source: SourceFile) -> Iterator[FinalStates]:
    """Yield the final states that ``out, h = layer(x)`` gives, if ``out`` and the whole of ``h`` are not read."""
    for operation in source.operations:
        layer, call = operation.subject, operation.node
        names = _unpacked_names(source, call) if layer.name in RECURRENT and isinstance(call, ast.Call) else None
        if names is None:
            continue
        scope: Any = function_of(source, call)
        reads = [each for each in nodes_in(scope, ast.Name) if isinstance(each.ctx, ast.Load)]
        steps, state = ([each for each in reads if each.id == name] for name in names)
        items = [source.parents.get(id(each)) for each in state]
        read = {_first_index(each): each for each in items if isinstance(each, ast.Subscript)}
        if read and not steps and all(isinstance(each, ast.Subscript) for each in items):
            yield FinalStates(layer, read)


def _first_index(node: ast.Subscript) -> int | None:
    first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return integer(first)


def _unpacked_names(source: SourceFile, call: ast.AST) -> tuple[str, str] | None:
    """Return ("out", "h") for ``out, h = layer(x)`` and ``out, (h, c) = layer(x)``."""
    match source.parents.get(id(call)):
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=steps), ast.Name(id=state)])]):
            return steps, state
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=steps), ast.Tuple(elts=[ast.Name(id=state), _])])]):
            return steps, state
        case _:
            return None
