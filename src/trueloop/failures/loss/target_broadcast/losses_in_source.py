"""Finds losses over all pairs of samples in the source: of (B, 1) and (B,)."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.loss.target_broadcast.shapes_in_source import (
    COLUMN,
    ELEMENTWISE,
    PAIRS,
    PER_ITEM_LOSSES,
    ROW,
    Shapes,
)

_TOTALS: Final = frozenset(("mean", "sum", "nanmean", "nansum"))
_LIBRARIES: Final = frozenset(("torch", "F", "functional", "np", "numpy"))
_PAIRED_ON_PURPOSE: Final = frozenset(("unsqueeze", "view", "reshape", "expand", "expand_as", "repeat", "t"))


class _Pair(NamedTuple):
    """Two operands with the shapes (B, 1) and (B,)."""

    node: ast.expr
    column: ast.expr
    row: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss, and each difference or product in a total, of which one operand is (B, 1) and the other (B,)."""
    shapes = Shapes(source)
    losses = {id(each.node) for each in source.ops(OpKind.LOSS) if _broadcasts(each.name.rpartition(".")[2])}
    for call in source.all_calls:
        if len(call.args) < 2 or not (id(call) in losses or _is_loss(source, call)):
            continue
        pair = _pair(source, shapes, call, *call.args[:2])
        if pair is not None:
            yield _hit(pair, None)
    for node in source.nodes_of(ast.BinOp):
        if isinstance(node.op, ast.Sub | ast.Mult) and _is_in_total(source, node):
            pair = _pair(source, shapes, node, node.left, node.right)
            if pair is not None:
                yield _hit(pair, Severity.WARNING)


def _hit(pair: _Pair, severity: Severity | None) -> Hit:
    return Hit(
        message=f"`{ast.unparse(pair.column)}` has the shape (B, 1) and `{ast.unparse(pair.row)}` has the shape (B,): "
        "both are broadcast to (B, B), so this is over all pairs of samples.",
        node=pair.node,
        severity=severity,
    )


def _is_loss(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a loss of PyTorch that broadcasts its arguments."""
    names = [last_name(call.func)]
    if not PER_ITEM_LOSSES.match(names[0]):
        made = origins(source, call.func)
        names = [last_name(each.func) for each in made if isinstance(each, ast.Call)]
    return bool(names) and all(map(_broadcasts, names))


def _broadcasts(name: str) -> bool:
    """Return True for a loss that broadcasts its arguments; a binary cross-entropy raises an error."""
    return bool(PER_ITEM_LOSSES.match(name)) and not name.startswith(("binary", "BCE"))


def _pair(source: SourceFile, shapes: Shapes, node: ast.expr, left: ast.expr, right: ast.expr) -> _Pair | None:
    found = shapes.of(left), shapes.of(right)
    if PAIRS in found and set(found) & {COLUMN, ROW}:
        inner = right if found[1] == PAIRS else left
        made = (_pair(source, shapes, each, each.left, each.right) for each in _sums(source, inner))
        return next((each._replace(node=node) for each in made if each is not None), None)
    if set(found) != {COLUMN, ROW}:
        return None
    column, row = (left, right) if found[0] == COLUMN else (right, left)
    if _is_on_purpose(source, column) or _is_made_of(source, row, column):
        return None
    return _Pair(node, column, row)


def _sums(source: SourceFile, node: ast.expr) -> Iterator[ast.BinOp]:
    """Yield the operations by which a value is computed from two operands."""
    for value in origins(source, node):
        yield from nodes_in(value, ast.BinOp)


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


def _is_in_total(source: SourceFile, node: ast.expr, depth: int = 3) -> bool:
    """Return True if the sum or mean of all values of an expression, or of a variable that holds it, is taken."""
    child: ast.AST = node
    parent: Any = source.parents.get(id(node))
    while parent is not None:
        match parent:
            case ast.BinOp() | ast.UnaryOp() | ast.Attribute() | ast.keyword():
                pass
            case ast.Call(func=func) if last_name(func) in _TOTALS:
                is_function = isinstance(func, ast.Attribute) and last_name(func.value) in _LIBRARIES
                rest = parent.args[1:] if is_function else parent.args
                return not rest and not any(each.arg in ("dim", "axis") for each in parent.keywords)
            case ast.Call(func=func) if last_name(func) in ELEMENTWISE | {"max", "min"}:
                if last_name(func) in ("max", "min") and any(integer(each) is not None for each in parent.args):
                    return False
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is child and depth:
                return _is_used_in_total(source, parent, name, depth)
            case ast.Return(value=value) if value is child and depth:
                return _is_result_in_total(source, parent, depth)
            case _:
                return False
        child, parent = parent, source.parents.get(id(parent))
    return False


def _is_used_in_total(source: SourceFile, statement: ast.stmt, name: str, depth: int) -> bool:
    function = function_of(source, statement)
    read = [e for e in nodes_in(function, ast.Name) if e.id == name and isinstance(e.ctx, ast.Load)]
    return any(_is_in_total(source, each, depth - 1) for each in read if each.lineno >= statement.lineno)


def _is_result_in_total(source: SourceFile, statement: ast.stmt, depth: int) -> bool:
    name = getattr(function_of(source, statement), "name", "")
    calls = [each for each in source.all_calls if name and last_name(each.func) == name]
    return any(_is_in_total(source, each, depth - 1) for each in calls)
