"""What stays the same from turn to turn of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op

PURE_FUNCTIONS: Final = frozenset(("int", "float", "len", "max", "min", "abs", "round", "str", "tuple", "list", "dict"))


def is_loop_invariant(expression: ast.expr, operation: Op, loop: Loop, bound: Iterable[str] = ()) -> bool:
    """Return True where an expression surely has the same value in every turn of a loop.

    Args:
        expression: an argument of what the operation does.
        operation: within the loop, perhaps in a function called from it.
        loop: of which the turns are meant.
        bound: attributes that something in the loop, functions called from it included, assigns to.
    """
    return _is_unchanged(expression, varying_names(operation, loop) | set(bound))


def varying_names(operation: Op, loop: Loop) -> set[str]:
    """Return the names and attributes that may be others in each turn, as seen from an operation in the loop."""
    inside = {id(each) for each in ast.walk(loop.node)}
    found, within = assigned_names(loop.node), False
    for call, function in zip(operation.calls, operation.functions, strict=True):
        within = within or id(call) in inside
        if within:
            found = assigned_names(function) | _varying_arguments(call, function, found)
    return found


def iterated_loader(loop: Loop) -> AbstractValue | None:
    """Return the loader that a loop goes through once, also by way of ``enumerate``; None where there is no one."""
    over = loop.iterable
    if over is not None and over.kind is ValueKind.SEQUENCE and over.name == "iterations":
        over = over.arguments.get("iterable")
    return over if over is not None and over.kind is ValueKind.LOADER and not over.union else None


def varies_per_iteration(start: Op, loop: Loop) -> bool:
    """Return True where what an inner loop goes through may be another in each turn of an outer one.

    Args:
        start: of the inner loop.
        loop: the outer one.
    """
    over = start.node.iter
    while isinstance(over, ast.Call) and over.args:  # enumerate(tqdm(loader, desc=...))
        over = over.args[0]
    return bool(names_in(over) & varying_names(start, loop)) or any(
        isinstance(each, ast.Subscript) for each in ast.walk(over)
    )


def names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes in a piece of a program."""
    return {
        each.id if isinstance(each, ast.Name) else each.attr for each in ast.walk(node) if isinstance(each, _NAME_NODES)
    }


def assigned_names(node: ast.AST) -> set[str]:
    """Return the names and attributes that something is assigned to in a piece of a program."""
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in ast.walk(node)
        if isinstance(each, _NAME_NODES) and not isinstance(each.ctx, ast.Load)
    }


def _is_unchanged(expression: ast.expr, others: set[str]) -> bool:
    """Return True where nothing in an expression is among names that change, and no call may return another thing."""
    pure = all(
        isinstance(each.func, ast.Name) and each.func.id in PURE_FUNCTIONS
        for each in ast.walk(expression)
        if isinstance(each, ast.Call)
    )
    return pure and not names_in(expression) & others


def _varying_arguments(call: Any, function: Any, outer: set[str]) -> set[str]:
    """Return the arguments of a function that a call gives something changing; all where that is hard to tell.

    The first argument may be the object of a method, as it is where a call does not name the function.
    """
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    given = call.args if isinstance(call, ast.Call) else None
    if given is None or any(isinstance(each, ast.Starred) for each in given):
        return {*outer, *names}
    found = {each.arg or "" for each in call.keywords if not _is_unchanged(each.value, outer)}
    plain = isinstance(call.func, ast.Name) and getattr(function, "name", call.func.id) == call.func.id
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if not plain and not _is_unchanged(owner, outer):
        found |= set(names[:1])
    for place, each in enumerate(given):
        if not _is_unchanged(each, outer):
            found |= set(names[place : place + 1 + (not plain)])
    others = outer - set(names)  # names of the module, or of a function around both
    return found | others


_NAME_NODES: Final = (ast.Name, ast.Attribute)
