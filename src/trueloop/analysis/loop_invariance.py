"""Finds out which expressions have the same value in every iteration of a loop."""

import ast
from collections.abc import Iterable
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op
from trueloop.core.source_text import nodes_in, walk

PURE_FUNCTIONS: Final = frozenset(("int", "float", "len", "max", "min", "abs", "round", "str", "tuple", "list", "dict"))


def is_loop_invariant(expression: ast.expr, operation: Op, loop: Loop, assigned: Iterable[str] = ()) -> bool:
    """Return True if an expression certainly has the same value in every iteration of a loop.

    Args:
        expression: an argument of the operation.
        operation: an operation in the loop, or in a function that the loop calls.
        loop: the loop.
        assigned: attributes that are assigned in the loop, or in functions that the loop calls.
    """
    return _is_unchanged(expression, varying_names(operation, loop) | set(assigned))


def varying_names(operation: Op, loop: Loop) -> set[str]:
    """Return the names and attributes that may have another value at an operation in each iteration of a loop."""
    inside = {id(each) for each in walk(loop.node)}
    found, is_inside = assigned_names(loop.node), False
    for call, function in zip(operation.calls, operation.functions, strict=True):
        is_inside = is_inside or id(call) in inside
        if is_inside:
            found = assigned_names(function) | _varying_arguments(call, function, found)
    return found


def iterated_loader(loop: Loop) -> AbstractValue | None:
    """Return the loader that a loop iterates over, directly or through ``enumerate``; None if there is none."""
    iterable = loop.iterable
    if iterable is not None and iterable.kind is ValueKind.SEQUENCE and iterable.name == "iterations":
        iterable = iterable.arguments.get("iterable")
    return iterable if iterable is not None and iterable.kind is ValueKind.LOADER and not iterable.union else None


def varies_per_iteration(start: Op, loop: Loop) -> bool:
    """Return True if an inner loop may have another iterable in each iteration of the outer loop.

    Args:
        start: the operation that starts the inner loop.
        loop: the outer loop.
    """
    iterable = start.node.iter
    while isinstance(iterable, ast.Call) and iterable.args:  # enumerate(tqdm(loader, desc=...))
        iterable = iterable.args[0]
    return bool(names_in(iterable) & varying_names(start, loop)) or bool(nodes_in(iterable, ast.Subscript))


def names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes in a syntax tree."""
    return {
        each.id if isinstance(each, ast.Name) else each.attr for each in walk(node) if isinstance(each, _NAME_NODES)
    }


def assigned_names(node: ast.AST) -> set[str]:
    """Return the names and attributes to which a syntax tree assigns."""
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in walk(node)
        if isinstance(each, _NAME_NODES) and not isinstance(each.ctx, ast.Load)
    }


def _is_unchanged(expression: ast.expr, varying: set[str]) -> bool:
    """Return True if an expression contains no varying name and only calls of pure functions."""
    pure = all(
        isinstance(each.func, ast.Name) and each.func.id in PURE_FUNCTIONS for each in nodes_in(expression, ast.Call)
    )
    return pure and not names_in(expression) & varying


def _varying_arguments(call: Any, function: Any, outer: set[str]) -> set[str]:
    """Return the names that vary in a function, since a call passes varying arguments or since they vary outside.

    If it is unclear, all parameters vary. The first one may be ``self``, unless the called name is the function's.
    """
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    positional = call.args if isinstance(call, ast.Call) else None
    if positional is None or any(isinstance(each, ast.Starred) for each in positional):
        return {*outer, *names}
    found = {each.arg or "" for each in call.keywords if not _is_unchanged(each.value, outer)}
    is_plain_call = isinstance(call.func, ast.Name) and getattr(function, "name", call.func.id) == call.func.id
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if not is_plain_call and not _is_unchanged(owner, outer):
        found |= set(names[:1])
    for position, each in enumerate(positional):
        if not _is_unchanged(each, outer):
            found |= set(names[position : position + 1 + (not is_plain_call)])
    others = outer - set(names)  # names of the module or of an enclosing function
    return found | others


_NAME_NODES: Final = (ast.Name, ast.Attribute)
