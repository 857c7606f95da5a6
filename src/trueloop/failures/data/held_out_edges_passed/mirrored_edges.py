"""Finds edge lists that have each edge of an undirected graph in both directions."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import possible_values, unpacked_call
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk

_JOINING: Final = frozenset(("cat", "concat", "concatenate", "vstack", "hstack", "r_", "c_", "append"))
_SYMMETRIC: Final = frozenset(("maximum", "logical_or", "bitwise_or", "max", "add", "fmax"))
_ONE_DIRECTION: Final = frozenset((
    "triu", "tril", "triu_indices", "tril_indices", "unique", "sorted", "set", "frozenset", "combinations", "sort",
    "drop_duplicates", "is_undirected", "RandomLinkSplit", "train_test_split_edges", "edges",
))  # fmt: skip
"""Functions whose result may have each edge once."""
_UNDIRECTED: Final = ("to_undirected", "ToUndirected", "add_reverse_edges", "to_bidirected")
_MAX_DEPTH: Final = 14


def mirrored(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> ast.expr | None:
    """Return the expression that puts both directions of each edge into a list of edges; None if there is none."""
    if not depth or _has_one_direction(source, node):
        return None
    if _adds_reverse(source, node):
        return node
    values = list(_sources(source, node))
    if isinstance(node, ast.Name) and not any(_has_one_direction(source, each) for each in values):
        added = _appended_both(source, node)
        if added is not None:
            return added
    return next((found for each in values if (found := mirrored(source, each, depth - 1)) is not None), None)


def _sources(source: SourceFile, node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions whose edges an expression has."""
    match node:
        case ast.Name() | ast.Attribute():
            values = possible_values(source, node)
            call = unpacked_call(source, node) if isinstance(node, ast.Name) and not values else None
            yield from values if call is None else [call]
            if isinstance(node, ast.Attribute):
                yield node.value
        case ast.Call(func=func, args=args):
            known = possible_values(source, node)
            yield from known or ([func.value, *args] if isinstance(func, ast.Attribute) else args)
        case ast.Subscript(value=value):
            yield value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            yield from items
        case ast.ListComp(generators=generators):
            yield from (each.value for g in generators for test in g.ifs for each in nodes_in(test, ast.Subscript))
            yield from (each.iter for each in generators)
        case ast.BinOp(left=left, right=right):
            yield from (left, right)
        case ast.Compare(left=left):
            yield left
        case _:
            pass


def _has_one_direction(source: SourceFile, node: ast.expr) -> bool:
    """Return True for an expression that may keep one direction of each edge."""
    match node:
        case ast.Call(func=func):
            return last_name(func) in _ONE_DIRECTION
        case ast.Subscript(slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            is_selected = any(isinstance(each, ast.Name) and not _is_order(source, each) for each in parts)
            return is_selected or any(isinstance(each, ast.Compare) for each in walk(index))
        case ast.ListComp(generators=generators):
            compares = [each for g in generators for test in g.ifs for each in nodes_in(test, ast.Compare)]
            is_ordered = any(
                isinstance(op, ast.Lt | ast.Gt | ast.LtE | ast.GtE) for each in compares for op in each.ops
            )
            starts = [each.iter for each in generators if isinstance(each.iter, ast.Call) and len(each.iter.args) > 1]
            return is_ordered or bool(starts)
        case _:
            return False


def _is_order(source: SourceFile, index: ast.Name) -> bool:
    """Return True for a permutation of all edges."""
    values = possible_values(source, index)
    return bool(values) and all(isinstance(e, ast.Call) and "perm" in last_name(e.func) for e in values)


def _adds_reverse(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``a | a.T``, ``torch.cat([e, e.flip(0)])``, ``e + [(v, u) for u, v in e]`` and the like."""
    match node:
        case ast.Call(func=func) if last_name(func) in _UNDIRECTED:
            return True
        case ast.Call(func=func, args=[ast.List(elts=[*parts]) | ast.Tuple(elts=[*parts]), *_]):
            return last_name(func) in _JOINING and any(_is_reversed(source, each, parts) for each in parts)
        case ast.Call(func=func, args=[first, second]) if last_name(func) in _SYMMETRIC:
            return _is_transposed(first, second) or _is_transposed(second, first)
        case ast.Subscript(value=ast.Attribute(attr="r_"), slice=ast.Tuple(elts=parts)):
            return any(_is_reversed(source, each, parts) for each in parts)
        case ast.BinOp(op=ast.BitOr() | ast.Add(), left=left, right=right):
            is_matrix = _is_transposed(left, right) or _is_transposed(right, left)
            return is_matrix or any(_is_reversed(source, each, (left, right)) for each in (left, right))
        case _:
            return False


def _is_transposed(node: ast.expr, other: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr="T" | "mT", value=inner):
            return ast.unparse(inner) == ast.unparse(other)
        case ast.Call(func=ast.Attribute(attr="t" | "transpose", value=inner)):
            return ast.unparse(inner) == ast.unparse(other)
        case _:
            return False


def _is_reversed(source: SourceFile, node: ast.expr, parts: Any) -> bool:
    """Return True for one of several parts that has the edges of another one with swapped nodes."""
    values = [node, *possible_values(source, node)] if isinstance(node, ast.Name) else [node]
    others = {ast.unparse(each) for each in parts if each is not node}
    for each in values:
        match each:
            case ast.Call(func=ast.Attribute(attr="flip", value=inner)) if ast.unparse(inner) in others:
                return True
            case ast.Call(func=func, args=[inner, *_]) if last_name(func) in ("flip", "fliplr", "flipud"):
                return ast.unparse(inner) in others
            case ast.Subscript(value=inner, slice=index) if ast.unparse(inner) in others:
                return any(_swaps(part) for part in (index.elts if isinstance(index, ast.Tuple) else [index]))
            case ast.ListComp(elt=ast.Tuple(elts=[first, second]), generators=[ast.comprehension(target=target)]):
                return _names(target) == [last_name(second), last_name(first)]
            case ast.Call(func=func, args=[ast.List(elts=[first, second]) | ast.Tuple(elts=[first, second]), *_]):
                swapped = f"[{ast.unparse(second)}, {ast.unparse(first)}]"
                return last_name(func) in ("stack", "column_stack", "array") and any(swapped in o for o in others)
            case _:
                pass
    return False


def _swaps(index: ast.expr) -> bool:
    """Return True for ``[1, 0]`` and ``::-1``."""
    return ast.unparse(index) in ("[1, 0]", "::-1", "(1, 0)")


def _names(target: ast.expr) -> list[str]:
    return [last_name(each) for each in target.elts] if isinstance(target, ast.Tuple) else []


def _appended_both(source: SourceFile, node: ast.Name) -> ast.expr | None:
    """Return the second of ``edges.append((u, v))`` and ``edges.append((v, u))``."""
    added: list[str] = []
    for call in nodes_in(function_of(source, node), ast.Call):
        match call:
            case ast.Call(func=ast.Attribute(attr="append" | "extend" | "add", value=ast.Name(id=name)), args=[item]):
                if name != node.id:
                    continue
            case _:
                continue
        items = item.elts if call.func.attr == "extend" and isinstance(item, ast.List | ast.Tuple) else [item]  # type: ignore[attr-defined]
        for each in items:
            if isinstance(each, ast.Tuple | ast.List) and len(each.elts) == 2:
                first, second = map(ast.unparse, each.elts)
                if f"{second}, {first}" in added:
                    return each
                added.append(f"{first}, {second}")
    return None
