"""Resolves names that are bound once, and tells whether a loop repeats an operation on the same value."""

import ast
from typing import Any

from trueloop.analysis.operations import Op
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name

Function = ast.FunctionDef | ast.AsyncFunctionDef


def bound_once(tree: ast.Module, name: str, function: Any) -> ast.Assign | None:
    """Return the only assignment of a name that is visible in a function; None if there are several, or none.

    Args:
        tree: the file's syntax tree.
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
        stores = [each for each in stores if _innermost_function(tree, each) is None]
    assigned = [each for each in ast.walk(scope) if isinstance(each, ast.Assign) and each.targets == stores[:1]]
    return assigned[0] if len(stores) == 1 and len(assigned) == 1 else None


def is_repeated(source: SourceFile, operation: Op, assign: ast.Assign) -> bool:
    """Return True if a loop certainly repeats an operation without repeating an assignment."""
    assigning_function = _innermost_function(source.tree, assign)
    for loop in operation.loops:
        if is_inside(assign, loop.node) or loop.runs_at_most_once():
            continue
        inside = assigning_function is None or is_inside(loop.node, assigning_function)
        reassigned = not inside and any(assigning_function in each.functions for each in source.ops_in_loop(loop))
        if not reassigned and operation.is_unconditional_in(loop):
            return True
    return False


def _stores(scope: ast.AST, name: str) -> list[Any]:
    return [
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store) and dotted_name(each) == name
    ]


def _arguments(function: Any) -> set[str]:
    arguments: ast.arguments = function.args
    return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _innermost_function(tree: ast.Module, node: ast.AST) -> Any:
    """Return the innermost function that contains a node; None = the module."""
    found = [each for each in ast.walk(tree) if isinstance(each, Function) and is_inside(node, each)]
    return found[-1] if found else None  # ast.walk yields outer functions first
