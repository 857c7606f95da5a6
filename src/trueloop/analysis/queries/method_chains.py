"""Looks behind the methods that a program calls on a value: conversions, views and reductions."""

import ast
from collections.abc import Container

from trueloop.analysis.source_file import last_name

_LIBRARIES = ("torch", "np", "numpy", "F")


def without_methods(
    node: ast.expr, methods: Container[str], functions: Container[str] | None = None, *, items: bool = False
) -> ast.expr:
    """Return the value of which a chain of methods is called, as ``x`` for ``x.view(-1).float()``.

    Args:
        node: the expression.
        methods: names of the methods to look behind.
        functions: names of functions of PyTorch or NumPy to look behind, as in ``torch.clamp(x, 0)``; with None, a
            library is a value as any other.
        items: whether to look behind an index, as in ``x[0].float()``.
    """
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=library), attr=name), args=[inner, *_]) if (
                functions is not None and library in _LIBRARIES
            ):
                if name not in functions:
                    return node
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in methods:
                node = inner
            case ast.Subscript(value=inner) if items:
                node = inner
            case _:
                return node


def without_calls(node: ast.expr, names: Container[str]) -> ast.expr:
    """Return the first argument behind some calls, as ``loader`` for ``enumerate(tqdm(loader))``."""
    while isinstance(node, ast.Call) and last_name(node.func) in names and node.args:
        node = node.args[0]
    return node
