"""Names that stand for one value, and whether an operation meets that value more than once."""

from __future__ import annotations

import ast
from typing import Any

from trueloop.analysis.operations import Op
from trueloop.analysis.queries.loops import stands_in
from trueloop.analysis.source_file import Source
from trueloop.core.source_text import dotted

Function = ast.FunctionDef | ast.AsyncFunctionDef


def bound_once(tree: ast.Module, name: str, function: Any) -> ast.Assign | None:
    """Return the one assignment of a name that is in force in a function; None where there are more, or none.

    Args:
        tree: of the file.
        name: a variable of the function or of the module, or an attribute: "self.weights".
        function: a definition; None = the module.
    """
    if not name:
        return None
    scope: ast.AST = tree
    if "." not in name and function is not None:
        if name in _arguments(function):
            return None
        scope = function if _stores(function, name) else tree
    stores = _stores(scope, name)
    if scope is tree and "." not in name:
        stores = [each for each in stores if _around(tree, each) is None]
    assigned = [each for each in ast.walk(scope) if isinstance(each, ast.Assign) and each.targets == stores[:1]]
    return assigned[0] if len(stores) == 1 and len(assigned) == 1 else None


def runs_again(source: Source, operation: Op, assign: ast.Assign) -> bool:
    """True where a loop surely comes to an operation again without coming to an assignment again."""
    maker = _around(source.tree, assign)
    for loop in operation.loops:
        if stands_in(assign, loop.node) or loop.once():
            continue
        inside = maker is None or stands_in(loop.node, maker)
        made_anew = not inside and any(maker in each.functions for each in source.within(loop))
        if not made_anew and operation.always_in(loop):
            return True
    return False


def _stores(scope: ast.AST, name: str) -> list[Any]:
    return [
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store) and dotted(each) == name
    ]


def _arguments(function: Any) -> set[str]:
    given: ast.arguments = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def _around(tree: ast.Module, node: ast.AST) -> Any:
    """Return the innermost function that a node stands in; None = the module."""
    found = [each for each in ast.walk(tree) if isinstance(each, Function) and stands_in(node, each)]
    return found[-1] if found else None  # a walk comes to what is outside first
