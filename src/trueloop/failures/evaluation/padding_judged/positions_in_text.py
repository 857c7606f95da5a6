"""Reads from the text whether the hits of a comparison are divided by the number of all positions of a batch."""

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in
from trueloop.analysis.source_file import last_name
from trueloop.core.source_text import nodes_in

_STEPS: Final = 4  # variables between a comparison and the division
_SIZES: Final = frozenset(("numel", "nelement", "shape", "size"))
_TRANSPARENT: Final = frozenset((
    "float", "sum", "item", "int", "double", "long", "cpu", "to", "numpy", "astype", "detach", "type", "count_nonzero",
    "flatten", "view", "reshape",
))  # fmt: skip
_MEANS: Final = frozenset(("mean", "average"))
_COLLECTING: Final = frozenset(("append", "extend", "add", "update"))

Parents = Mapping[int, ast.AST]


def counts_all(parents: Parents, scope: ast.AST, compared: ast.expr, names: set[str]) -> bool:
    """Return True if hits are averaged over all positions, or their sum is divided by the number of all labels.

    Args:
        parents: id of a node -> the node around it.
        scope: the loop or function that contains the comparison.
        compared: the comparison.
        names: the source code of the tensors that are compared.
    """
    node: ast.AST = compared
    known = set(names)
    for _ in range(_STEPS):
        node, is_mean = _outermost(parents, node)
        parent = parents.get(id(node))
        if is_mean:
            return True
        if not isinstance(parent, ast.Assign):
            return _is_divided(scope, parent, node, known)
        target = parent.targets[0]
        uses = _uses(parents, scope, target.id) if isinstance(target, ast.Name) else []
        if len(uses) != 1 or not isinstance(target, ast.Name):
            return False
        known.add(target.id)
        node = uses[0]
    return False


def _outermost(parents: Parents, node: ast.AST) -> tuple[ast.AST, bool]:
    """Return the expression that sums up or converts a value, and whether it averages it."""
    while True:
        parent = parents.get(id(node))
        match parent:
            case ast.Attribute(attr=name) | ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                if name in _MEANS:
                    return node, True
                if name not in _TRANSPARENT:
                    return node, False
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                if not any(isinstance(each, ast.Constant) for each in (left, right)):
                    return node, False
            case _:
                return node, False
        node = parent


def _uses(parents: Parents, scope: ast.AST, name: str) -> list[ast.Name]:
    """Return the uses of a variable, except those that read its size."""
    uses = [each for each in nodes_in(scope, ast.Name) if each.id == name and isinstance(each.ctx, ast.Load)]
    return [each for each in uses if last_name(parents.get(id(each))) not in _SIZES]


def _is_divided(scope: ast.AST, parent: Any, node: ast.AST, names: set[str]) -> bool:
    """Return True if hits are divided by the number of all labels, or added up next to it."""
    match parent:
        case ast.BinOp(op=ast.Div(), left=left, right=right) if left is node:
            return _has_size(scope, right, names)
        case ast.AugAssign() | ast.BinOp(op=ast.Add()):
            added = [each.value for each in nodes_in(scope, ast.AugAssign)]
            added += [each for total in nodes_in(scope, ast.BinOp) for each in (total.left, total.right)]
            return any(_has_size(scope, each, names) for each in added)
        case ast.Tuple(elts=parts):
            return any(_has_size(scope, each, names) for each in parts if each is not node)
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in _COLLECTING:
            calls = [each for each in nodes_in(scope, ast.Call) if last_name(each.func) == attr and each is not parent]
            others = [each for each in parent.args if each is not node]
            return any(_has_size(scope, each, names) for each in (*others, *(a for call in calls for a in call.args)))
        case _:
            return False


def _has_size(scope: ast.AST, node: ast.expr, names: set[str]) -> bool:
    """Return True for the number of all elements of a tensor: ``tags.numel()`` or ``tags.size(0) * tags.size(1)``."""
    values = [found[0] for each in nodes_in(node, ast.Name) if len(found := assigned_in(scope, each.id)) == 1]
    texts = [ast.unparse(each) for each in (node, *values)]
    return any(_is_size(text, re.escape(name)) for text in texts for name in names)


def _is_size(text: str, name: str) -> bool:
    flat = rf"(?<!\w){name}(\.\w+(\(-?[\d, -]*\))?)*"
    return bool(
        re.search(rf"{flat}\.(numel|nelement)\(\)|prod\({name}\.(shape|size\(\))\)|numel\({flat}\)", text)
        or re.search(rf"(?<!\w){name}\.(flatten|view|reshape|ravel)\([-\d]*\)\.(size\(0\)|shape\[0\])", text)
        or re.search(rf"len\({name}\.(flatten|view|reshape|ravel)\([-\d]*\)\)", text)
        or len(re.findall(rf"(?<!\w){name}\.(?:size\(|shape\[)-?[01]", text)) == 2
    )
