"""Finds variables whose new value nothing reads after an object was created from them."""

import ast
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in, walk

_SHOWING: Final = frozenset((
    "print", "log", "info", "debug", "warning", "write", "format", "append", "set_postfix", "set_description",
    "add_scalar", "str", "round", "update",
))  # fmt: skip
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_LOOPS: Final = ast.For | ast.While | ast.AsyncFor


def scope_of(source: SourceFile, rate: ast.Name | ast.Attribute) -> Any:
    """Return the function in which a variable is local; the whole program for an attribute or a global variable."""
    function = function_of(source, rate)
    return function if isinstance(rate, ast.Name) and is_local(function, rate.id) else source.tree


def is_local(function: Any, name: str) -> bool:
    """Return True for a parameter of a function, and a variable that it assigns."""
    if not isinstance(function, _FUNCTIONS):
        return False
    nodes = list(walk(function))
    if any(isinstance(each, ast.Global | ast.Nonlocal) and name in each.names for each in nodes):
        return False
    return any(
        (isinstance(each, ast.arg) and each.arg == name)
        or (isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store))
        for each in nodes
    )


def has_loop(source: SourceFile, statement: ast.AST) -> bool:
    """Return True if a loop of the same function is around a node."""
    parent = source.parents.get(id(statement))
    while parent is not None and not isinstance(parent, _FUNCTIONS):
        if isinstance(parent, _LOOPS):
            return True
        parent = source.parents.get(id(parent))
    return False


def is_unread(source: SourceFile, creation: ast.AST, rate: ast.Name | ast.Attribute, stores: list[Any]) -> bool:
    """Return True if the variable is read until an object is created, for its own next value, or to be shown."""
    scope = scope_of(source, rate)
    if any(each.id in ("locals", "globals", "vars") for each in nodes_in(scope, ast.Name)):
        return False
    if any("tensor" in ast.unparse(each).lower() for each in stores):
        return False  # a tensor is changed in place
    in_loop = has_loop(source, creation)
    kind = ast.Name if isinstance(rate, ast.Name) else ast.Attribute
    for each in walk(scope):
        if not isinstance(each, kind) or last_name(each) != last_name(rate) or not isinstance(each.ctx, ast.Load):
            continue
        if isinstance(each, ast.Name) and scope is source.tree and is_local(function_of(source, each), each.id):
            continue
        is_before = each.lineno <= getattr(creation, "end_lineno", 0) and not in_loop
        is_before = is_before and function_of(source, each) is function_of(source, creation)
        if not is_before and not any(encloses(store, each) for store in stores) and not _is_shown(source, each):
            return False
    return True


def _is_shown(source: SourceFile, node: ast.AST) -> bool:
    """Return True if a value is only printed, logged or compared with a limit."""
    parent: Any = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.Call):
            return last_name(parent.func) in _SHOWING
        parent = source.parents.get(id(parent))
    return isinstance(parent, ast.If) and encloses(parent.test, node)
