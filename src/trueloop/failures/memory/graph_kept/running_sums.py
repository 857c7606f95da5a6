"""Finds the sums and products of losses in the text of a loop that computes the gradients of each loss."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name, walk
from trueloop.failures.memory.graph_kept.growing_containers import is_within_update

_CUTS: Final = (".item(", ".detach(", ".data", "float(", ".numpy(", ".tolist(")


def running_sums(source: SourceFile) -> Iterator[tuple[Any, ast.expr, ast.Call]]:
    """Yield each statement that adds a loss to a number, the loss in it, and the ``backward()`` of the loss."""
    steps, passes = source.ops(OpKind.STEP), source.ops(OpKind.BACKWARD)
    for loop in source.nodes:
        if not isinstance(loop, ast.For | ast.While):
            continue
        around = next((each.loops for each in passes if any(one.node is loop for one in each.loops)), ())
        if any(one.node is loop and is_within_update(one, around, steps) for one in around):
            continue
        backwards = {
            dotted_name(each.func.value): each
            for each in walk(loop)
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "backward"
        }
        for statement in loop.body if backwards else ():
            total, loss = _parts(statement)
            backward = backwards.get(dotted_name(loss)) if loss is not None else None
            if total is None or loss is None or backward is None or backward.keywords or backward.args:
                continue
            if _starts_as_number(source, loop, total) and _is_fresh(loop, dotted_name(loss)):
                yield statement, loss, backward


def _parts(statement: ast.stmt) -> tuple[ast.expr | None, ast.expr | None]:
    """Return the total and the loss of ``total += loss``, ``total = total + loss`` or ``total *= exp(loss)``."""
    match statement:
        case ast.AugAssign(target=target, op=ast.Add() | ast.Mult(), value=value):
            return target, _loss(value)
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right)):
            sides = [(left, right), (right, left)]
            own = dotted_name(target)
            return next(
                ((target, _loss(other)) for one, other in sides if own and dotted_name(one) == own), (None, None)
            )
        case _:
            return None, None


def _loss(value: ast.expr) -> ast.expr | None:
    """Return the variable of ``loss``, ``torch.exp(loss)``, ``loss * n`` or ``loss / n``."""
    match value:
        case ast.Name():
            return value
        case ast.Call(func=ast.Attribute(attr="exp"), args=[ast.Name() as inner]):
            return inner
        case ast.BinOp(op=ast.Mult() | ast.Div(), left=ast.Name() as inner):
            return inner
        case _:
            return None


def _starts_as_number(source: SourceFile, loop: ast.AST, total: ast.expr) -> bool:
    """Return True for a variable that starts as a number outside of the loop and has no backward pass itself."""
    name, function = dotted_name(total), function_of(source, loop)
    if not isinstance(total, ast.Name):
        return False
    values = assigned_in(function, name) or assigned_in(source.tree, name)
    inside = [each for each in assigned_in(loop, name) if initial_number(each) is not None]
    used = [each for each in walk(function) if isinstance(each, ast.Attribute) and dotted_name(each.value) == name]
    is_number = any(initial_number(each) is not None for each in values) or not values
    return is_number and not inside and all(each.attr not in ("backward", "detach", "detach_") for each in used)


def _is_fresh(loop: ast.AST, name: str) -> bool:
    """Return True if each iteration computes a new loss, with a graph."""
    values = [ast.unparse(each) for each in assigned_in(loop, name)]
    detached = any(
        isinstance(each, ast.Attribute) and each.attr == "detach_" and dotted_name(each.value) == name
        for each in walk(loop)
    )
    return bool(values) and not detached and not any(cut in each for each in values for cut in _CUTS)
