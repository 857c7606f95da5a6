"""Finds the sums and products of losses in the text of a loop that computes the gradients of each loss."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.memory.graph_kept.growing_containers import has_few_iterations, is_within_update

_CUTS: Final = (".item(", ".detach(", ".data", "float(", ".numpy(", ".tolist(")


def running_sums(source: SourceFile) -> Iterator[tuple[ast.stmt, list[ast.expr], ast.Call]]:
    """Yield each statement that adds a loss to a number, the places of the loss, and the loss's ``backward()``."""
    steps, passes = source.ops(OpKind.STEP), source.ops(OpKind.BACKWARD)
    for loop in source.nodes_of(ast.For, ast.While):
        around = next((each.loops for each in passes if any(one.node is loop for one in each.loops)), ())
        within_update = any(one.node is loop and is_within_update(one, around, steps) for one in around)
        if within_update or has_few_iterations(source, loop):
            continue
        backwards = {
            dotted_name(each.func.value): each
            for each in nodes_in(loop, ast.Call)
            if isinstance(each.func, ast.Attribute) and each.func.attr == "backward"
        }
        for whole, statement in _statements(loop.body) if backwards else ():
            total, loss = _parts(statement)
            backward = backwards.get(dotted_name(loss)) if loss is not None else None
            if total is None or loss is None or backward is None or backward.keywords or backward.args:
                continue
            starts = whole is not statement or _starts_as_number(source, loop, total)
            if starts and _is_only_reported(source, loop, total) and _is_fresh(loop, dotted_name(loss)):
                names = list(nodes_in(whole, ast.Name))
                yield statement, [each for each in names if each.id == dotted_name(loss)], backward


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Yield the statements of a loop; of ``if first: total = loss else: ...`` those inside, after the whole one."""
    for statement in body:
        match statement:
            case ast.If(body=[ast.Assign(targets=[first])], orelse=[ast.Assign(targets=[target]) as update]) if (
                ast.unparse(first) == ast.unparse(target)
            ):
                yield statement, update
            case _:
                yield statement, statement


def _parts(statement: ast.stmt) -> tuple[ast.expr | None, ast.expr | None]:
    """Return the total and the loss of ``total += loss``, ``total = total + loss`` or ``total *= exp(loss)``.

    The total may have a factor, as in an average ``total = 0.9 * total + 0.1 * loss``.
    """
    match statement:
        case ast.Assign(targets=[target], value=ast.IfExp(body=body, orelse=orelse)):
            found = (_parts(ast.Assign(targets=[target], value=each)) for each in (body, orelse))
            return next((each for each in found if each[1] is not None), (None, None))
        case ast.AugAssign(target=target, op=ast.Add() | ast.Mult(), value=value):
            return target, _loss(value)
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right)):
            sides = [(left, right), (right, left)]
            own = dotted_name(target)
            return next(((target, _loss(other)) for one, other in sides if own and _is_scaled(one, own)), (None, None))
        case _:
            return None, None


def _is_scaled(value: ast.expr, name: str) -> bool:
    """Return True for a variable, also with a factor."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
        return dotted_name(value.left) == name or (isinstance(value.op, ast.Mult) and dotted_name(value.right) == name)
    return dotted_name(value) == name


def _loss(value: ast.expr) -> ast.expr | None:
    """Return the variable of ``loss``, ``torch.exp(loss)``, ``loss * n``, ``n * loss`` or ``loss / n``."""
    match value:
        case ast.Name():
            return value
        case ast.Call(func=ast.Attribute(attr="exp"), args=[ast.Name() as inner]):
            return inner
        case ast.BinOp(op=ast.Mult() | ast.Div(), left=ast.Name() as inner):
            return inner
        case ast.BinOp(op=ast.Mult(), right=ast.Name() as inner):
            return inner
        case _:
            return None


def _starts_as_number(source: SourceFile, loop: ast.AST, total: ast.expr) -> bool:
    """Return True for a variable that starts as a number, or as None, outside of the loop."""
    name, function = dotted_name(total), function_of(source, loop)
    values = assigned_in(function, name) or assigned_in(source.tree, name)
    inside = [each for each in assigned_in(loop, name) if initial_number(each) is not None]
    is_number = any(initial_number(each) is not None or ast.unparse(each) == "None" for each in values) or not values
    return is_number and not inside


def _is_only_reported(source: SourceFile, loop: ast.AST, total: ast.expr) -> bool:
    """Return True for a variable without a backward pass that is not detached."""
    name, function = dotted_name(total), function_of(source, loop)
    used = [each for each in nodes_in(function, ast.Attribute) if dotted_name(each.value) == name]
    return isinstance(total, ast.Name) and all(each.attr not in ("backward", "detach", "detach_") for each in used)


def _is_fresh(loop: ast.AST, name: str) -> bool:
    """Return True if each iteration computes a new loss, with a graph."""
    values = [ast.unparse(each) for each in assigned_in(loop, name)]
    detached = any(each.attr == "detach_" and dotted_name(each.value) == name for each in nodes_in(loop, ast.Attribute))
    return bool(values) and not detached and not any(cut in each for each in values for cut in _CUTS)
