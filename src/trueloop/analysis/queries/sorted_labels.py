"""Finds labels that are sorted by class, one class after the other, in the source."""

import ast
from collections.abc import Container
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import added_to_list
from trueloop.analysis.queries.possible_values import loops_around, origins, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_SORTED_DATA: Final = frozenset(("load_iris", "load_wine"))
_JOINING: Final = frozenset(("cat", "concatenate", "hstack", "concat", "r_", "vstack"))
_CONSTANT: Final = frozenset(("zeros", "ones", "full"))
_CONVERSIONS: Final = frozenset((
    "tensor", "from_numpy", "as_tensor", "LongTensor", "FloatTensor", "Tensor", "array", "asarray",
))  # fmt: skip
_METHODS: Final = frozenset(
    ("astype", "long", "float", "to", "view", "reshape", "unsqueeze", "numpy", "copy", "flatten")
)
_MAX_DEPTH: Final = 10


def sorted_origin(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> ast.expr | None:
    """Return the expression that makes labels in the order of their classes; None if it is unknown."""
    if _is_sorted(node) or _is_joined_by_class(source, node):
        return node
    inner: Any = None
    match node:
        case ast.Subscript(value=ast.Name() | ast.Attribute() as base, slice=index):
            inner = base if _keeps_order(source, index) else None
        case ast.Attribute(attr="target", value=inner):
            pass
        case ast.Call(func=func, args=[inner, *_]) if last_name(func) in _CONVERSIONS:
            pass
        case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _METHODS:
            pass
        case ast.Name() | ast.Attribute():
            values = (possible_values(source, node) or _unpacked(source, node)) if depth else []
            found = [sorted_origin(source, each, depth - 1) for each in values if each is not node]
            return found[0] if found and None not in found else None
        case ast.Call():
            values = possible_values(source, node)
            inner = values[0] if len(values) == 1 else None
        case _:
            pass
    return None if inner is None or inner is node or not depth else sorted_origin(source, inner, depth - 1)


def _keeps_order(source: SourceFile, index: ast.expr) -> bool:
    """Return True for a part, or a mask, which leaves the rows in their order."""
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        index = index.operand
    return isinstance(index, ast.Slice) or any(isinstance(each, ast.Compare) for each in origins(source, index))


def _is_joined_by_class(source: SourceFile, node: ast.expr) -> bool:
    """Return True for labels that are joined, or listed, in a loop over the classes."""
    match node:
        case ast.Call(func=func, args=[joined, *_]) if last_name(func) in _JOINING:
            return _is_listed_by_class(source, joined)
        case ast.ListComp(elt=ast.Name(id=label), generators=[outer, _]):
            return label in _names(outer.target)  # [c for c in range(10) for _ in range(50)]
        case ast.ListComp() | ast.Name():
            return _is_listed_by_class(source, node)
        case _:
            return False


def _is_listed_by_class(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a list to which a loop over the classes adds equal labels of one class after the other."""
    if isinstance(node, ast.ListComp) and len(node.generators) == 1:
        return _is_of_class(node.elt, _names(node.generators[0].target))
    added = list(added_to_list(source, node)) if isinstance(node, ast.Name) else []
    return bool(added) and all(
        any(_is_of_class(value, _names(loop.target)) for loop in loops_around(source, value)) for value in added
    )


def _names(target: ast.expr) -> set[str]:
    return {each.id for each in nodes_in(target, ast.Name)}


def _is_of_class(node: ast.expr, names: Container[str]) -> bool:
    """Return True for labels that all have the value of a loop variable: ``np.full(n, c)``, ``[c] * n``."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _METHODS:
            return _is_of_class(inner, names)
        case ast.Call(func=func) if last_name(func) == "full":
            values = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "fill_value")]
            return any(_is_variable(each, names) for each in values)
        case (
            ast.BinOp(op=ast.Mult(), left=ast.List(elts=[label]))
            | ast.BinOp(op=ast.Mult(), right=ast.List(elts=[label]))
        ):
            return _is_variable(label, names)
        case ast.BinOp(op=ast.Mult() | ast.Add(), left=left, right=right):
            return any(
                _is_constant(one) and _is_variable(other, names) for one, other in ((left, right), (right, left))
            )
        case _:
            return False


def _is_variable(node: ast.expr, names: Container[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _is_sorted(node: ast.expr) -> bool:
    """Return True for an expression that lists one class after the other."""
    match node:
        case ast.Call(func=func) if last_name(func) in _SORTED_DATA:
            return True
        case ast.Call(func=func, args=[ast.List(elts=items) | ast.Tuple(elts=items), *_]) if (
            last_name(func) in _JOINING
        ):
            return len(items) > 1 and all(map(_is_constant, items))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _is_constant(left) and _is_constant(right)
        case ast.Call(func=ast.Attribute(attr="repeat", value=ast.Name(id="np" | "numpy"))):
            return True
        case ast.Call(func=ast.Attribute(attr="repeat_interleave")):
            return True
        case _:
            return False


def _unpacked(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return the call in ``x, y = load_iris(return_X_y=True)``."""
    name = last_name(node)
    return [
        each.value
        for each in source.nodes_of(ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Tuple) and isinstance(each.value, ast.Call)
        if any(last_name(item) == name for item in target.elts)
    ]


def _is_constant(node: ast.expr) -> bool:
    """Return True for labels that are all equal: ``torch.zeros(50)``, ``[1] * 50``."""
    match node:
        case ast.Call(func=func) if last_name(func) in _CONSTANT:
            return True
        case ast.Call(func=ast.Attribute(value=inner)) if last_name(node.func) in _METHODS:
            return _is_constant(inner)
        case ast.BinOp(op=ast.Mult(), left=ast.List(elts=[ast.Constant()])):
            return True
        case ast.BinOp(op=ast.Mult() | ast.Add(), left=left, right=ast.Constant()):
            return _is_constant(left)
        case _:
            return False
