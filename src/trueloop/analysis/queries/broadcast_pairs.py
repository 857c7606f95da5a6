"""Finds operands of the shapes (B, 1) and (B,), which PyTorch broadcasts to all pairs of samples, in the source."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins, without_cycles
from trueloop.analysis.queries.shuffled_loaders import Calls
from trueloop.analysis.queries.target_shapes import COLUMN, ELEMENTWISE, PAIRS, ROW, Shapes
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in

_TOTALS: Final = frozenset(("mean", "sum", "nanmean", "nansum", "norm"))
_LIBRARIES: Final = frozenset(("torch", "F", "functional", "np", "numpy"))
_PAIRED_ON_PURPOSE: Final = frozenset(("unsqueeze", "view", "reshape", "expand", "expand_as", "repeat", "t"))


class Pair(NamedTuple):
    """Two operands with the shapes (B, 1) and (B,)."""

    node: ast.expr
    column: ast.expr
    row: ast.expr


def pair_of(
    source: SourceFile, shapes: Shapes, node: ast.expr, left: ast.expr, right: ast.expr, calls: Calls = ()
) -> Pair | None:
    """Return two operands if one is (B, 1) and the other (B,), also inside of one; None if that is on purpose."""
    found = shapes.of(left, calls), shapes.of(right, calls)
    if PAIRS in found and set(found) & {COLUMN, ROW}:
        inner = right if found[1] == PAIRS else left
        made = (pair_of(source, shapes, each, each.left, each.right, calls) for each in _sums(source, inner))
        return next((each._replace(node=node) for each in made if each is not None), None)
    if set(found) != {COLUMN, ROW}:
        return None
    column, row = (left, right) if found[0] == COLUMN else (right, left)
    if _is_on_purpose(source, column) or _is_made_of(source, row, column):
        return None
    return Pair(node, column, row)


def _sums(source: SourceFile, node: ast.expr) -> Iterator[ast.BinOp]:
    """Yield the operations by which a value is computed from two operands."""
    for value in origins(source, node):
        yield from nodes_in(value, ast.BinOp)


@without_cycles(False)
def _is_on_purpose(source: SourceFile, node: ast.expr) -> bool:
    """Return True for an operand to which the same function adds a dimension, as for a table of all pairs."""
    function = function_of(source, node)
    for each in origins(source, node, 2):
        is_here = each is node or (function_of(source, each) is function is not source.tree)
        match each:
            case ast.Call() if last_name(each.func) in _PAIRED_ON_PURPOSE:
                return is_here
            case ast.Subscript(slice=ast.Tuple(elts=indices)):
                return is_here and any(isinstance(index, ast.Constant) and index.value is None for index in indices)
            case ast.Call() if last_name(each.func) in ELEMENTWISE and isinstance(each.func, ast.Attribute):
                return _is_on_purpose(source, each.func.value)
            case _:
                pass
    return False


def _is_made_of(source: SourceFile, row: ast.expr, column: ast.expr) -> bool:
    """Return True if a row is computed from the variable that is the column."""
    made_of = {each.id for value in origins(source, row, 1) for each in nodes_in(value, ast.Name)}
    return isinstance(column, ast.Name) and column.id in made_of


def is_in_total(source: SourceFile, node: ast.expr, depth: int = 3, *, is_linear: bool = True) -> bool:
    """Return True if the sum or mean of all values of an expression, or of a variable that holds it, is taken.

    The mean of a difference is left out: over all pairs, it is the same number as over the samples.

    Args:
        source: the program.
        node: the expression.
        depth: number of assignments and calls of functions that are followed.
        is_linear: whether the expression was only added or subtracted so far.
    """
    child: ast.AST = node
    parent: Any = source.parents.get(id(node))
    is_linear &= _is_added(node) or isinstance(node, ast.Name | ast.Call)
    while parent is not None:
        is_linear &= not isinstance(parent, ast.expr) or _is_added(parent) or _is_total(parent)
        match parent:
            case ast.BinOp(op=ast.MatMult()):
                break
            case ast.BinOp() | ast.UnaryOp() | ast.Attribute() | ast.keyword():
                pass
            case ast.Call() if _is_total(parent):
                return _is_of_all(parent, is_linear=is_linear)
            case ast.Call(func=func) if last_name(func) in ELEMENTWISE | {"max", "min"}:
                if last_name(func) in ("max", "min") and any(integer(each) is not None for each in parent.args):
                    return False
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is child and depth:
                return _is_used_in_total(source, parent, name, depth, is_linear=is_linear)
            case ast.Return(value=value) if value is child and depth:
                return _is_result_in_total(source, parent, depth, is_linear=is_linear)
            case _:
                return False
        child, parent = parent, source.parents.get(id(parent))
    return False


def _is_added(node: ast.AST) -> bool:
    """Return True for an expression in which its parts are only added, subtracted or negated."""
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    return is_sum or isinstance(node, ast.UnaryOp | ast.Attribute)


def _is_total(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _TOTALS


def _is_of_all(total: ast.Call, *, is_linear: bool) -> bool:
    """Return True for a total over all dimensions, but not for the mean of a sum."""
    is_function = isinstance(total.func, ast.Attribute) and last_name(total.func.value) in _LIBRARIES
    rest = total.args[1:] if is_function else total.args
    is_whole = not rest and not any(each.arg in ("dim", "axis") for each in total.keywords)
    return is_whole and not (is_linear and last_name(total.func) in ("mean", "nanmean"))


def _is_used_in_total(source: SourceFile, statement: ast.stmt, name: str, depth: int, *, is_linear: bool) -> bool:
    function = function_of(source, statement)
    read = [e for e in nodes_in(function, ast.Name) if e.id == name and isinstance(e.ctx, ast.Load)]
    return any(
        is_in_total(source, each, depth - 1, is_linear=is_linear) for each in read if each.lineno >= statement.lineno
    )


def _is_result_in_total(source: SourceFile, statement: ast.stmt, depth: int, *, is_linear: bool) -> bool:
    name = getattr(function_of(source, statement), "name", "")
    calls = [each for each in source.all_calls if name and last_name(each.func) == name]
    return any(is_in_total(source, each, depth - 1, is_linear=is_linear) for each in calls)
