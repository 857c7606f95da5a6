"""Finds lists that stay empty: nothing in the program puts anything into them."""

import ast
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_READING: Final = frozenset((
    "len", "sum", "mean", "nanmean", "average", "median", "std", "min", "max", "print", "enumerate", "zip", "sorted",
))  # fmt: skip
"""Functions that do not change a list."""


def never_filled(source: SourceFile, read: ast.expr) -> ast.stmt | None:
    """Return the statement that sets a variable or attribute to ``[]``, if it certainly is empty wherever it is read.

    None if the program does anything else with it than to go through it or to pass it to functions that only read it.
    """
    found: ast.stmt | None = None
    for each in _occurrences(source, read):
        if isinstance(each.ctx, ast.Load):
            if not _is_read(source, each):
                return None
            continue
        statement: Any = source.parents.get(id(each))
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not _is_empty(statement.value):
            return None
        found = found or statement
    return found


def _occurrences(source: SourceFile, read: ast.expr) -> list[Any]:
    """Return the nodes that may be the same variable or attribute; [] if it may be reached in other ways."""
    name = last_name(read)
    if isinstance(read, ast.Attribute):
        by_name = any(each.value == name for each in source.nodes_of(ast.Constant))
        return [] if by_name else list(definitions(source).attributes.get(name, ()))
    function = function_of(source, read)
    is_given = any(each.arg == name for each in nodes_in(function, ast.arg))
    is_shared = any(name in each.names for each in source.nodes_of(ast.Global, ast.Nonlocal))
    return [] if is_given or is_shared else [each for each in nodes_in(function, ast.Name) if each.id == name]


def _is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Call(func=ast.Name(id="list"), args=[]):
            return True
        case _:
            return False


def _is_read(source: SourceFile, node: ast.expr) -> bool:
    parent = source.parents.get(id(node))
    if isinstance(parent, ast.For | ast.comprehension):
        return parent.iter is node
    return isinstance(parent, ast.Call) and last_name(parent.func) in _READING and node in parent.args
