"""Finds loops over the parameters or buffers of a model."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.core.source_text import nodes_in

_TENSORS: Final = ("parameters", "named_parameters", "buffers", "named_buffers")
_SAME_ITEMS: Final = ("list", "tuple", "enumerate", "reversed", "iter")
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def loop_variables_of_parameters(node: ast.AST) -> Iterator[str]:
    """Yield the variables to which a loop, a comprehension or a filter assigns parameters or buffers."""
    if isinstance(node, ast.For) and _yields_tensors(node.iter):
        yield from _names(node.target)
    elif isinstance(node, _COMPREHENSIONS):
        for each in node.generators:
            if _yields_tensors(each.iter):
                yield from _names(each.target)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "filter":
        function, *over = node.args
        if isinstance(function, ast.Lambda) and over and _yields_tensors(over[0]):
            yield from (each.arg for each in function.args.args)


def _yields_tensors(node: ast.expr) -> bool:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SAME_ITEMS and node.args:
        node = node.args[0]
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TENSORS


def _names(target: ast.expr) -> Iterator[str]:
    return (each.id for each in nodes_in(target, ast.Name))
