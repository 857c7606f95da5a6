"""Finds batches that a program cuts from its data by slices, and changes in place, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.loop_variables import stored_names, trains
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.data.samples_changed_in_place.in_functions import SHARING, ChangedView, Views, changed_views

_LOOPS: Final = ast.For | ast.While
_AUGMENTS: Final = re.compile(r"rand|normal\(|noise|mean|std|255|scale", re.IGNORECASE)
"""Changes of samples, unlike those of weights or results."""


def changed_batches(source: SourceFile) -> Iterator[ChangedView]:
    """Yield the first change of a slice of the data in each loop over batches that is repeated for each epoch."""
    for loop in source.nodes_of(ast.For, ast.While):
        epochs = next((each for each in enclosing_nodes(source, loop) if isinstance(each, _LOOPS)), None)
        if epochs is None or not trains(loop):
            continue
        changes = changed_views(source, function_of(source, loop), loop.body, _view)
        found = (each for each in changes if _is_kept(epochs, each.view))
        first = next(found, None)
        if first is not None and _AUGMENTS.search(ast.unparse(first.statement)):
            yield first


def _view(node: ast.expr, views: Views) -> ast.Subscript | None:
    """Return the slice ``data[start:end]`` with which a value shares memory; None if with none."""
    match node:
        case ast.Subscript(value=ast.Name(), slice=ast.Slice(lower=lower, upper=upper)):
            return node if (lower or upper) is not None else None
        case ast.Name(id=name):
            return views.get(name)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in SHARING:
            return _view(node.args[0] if last_name(inner) in ("torch", "np") and node.args else inner, views)
        case _:
            return None


def _is_kept(epochs: ast.AST, view: ast.Subscript) -> bool:
    """Return True if no epoch begins with a new array: ``x = x[order]`` takes the changed samples over."""
    name = last_name(view.value)
    pairs = [pair for each in nodes_in(epochs, ast.Assign) for pair in assigned_pairs(each)]
    new = [value for target, value in pairs if last_name(target) == name]
    if any(name in stored_names(each.target) for each in nodes_in(epochs, ast.For)):
        return False
    return all(name in {each.id for each in nodes_in(value, ast.Name)} for value in new)
