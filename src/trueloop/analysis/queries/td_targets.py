"""Finds the targets of Q-learning and of critics: a reward plus the discounted value of the next state."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.signed_terms import factors
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_DISCOUNT: Final = re.compile(r"gamma|discount|(^|_)gam(_|$)", re.IGNORECASE)
_REWARD: Final = re.compile(r"rew|(^|_)[rR]s?(_|$|\d)", re.IGNORECASE)
_VIEWS: Final = frozenset((
    "detach", "item", "cpu", "float", "to", "unsqueeze", "squeeze", "view", "reshape", "flatten", "numpy", "clone",
    "expand", "expand_as",
))  # fmt: skip


def discounted_values(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield reward and each factor of the product in ``r + gamma * v``, also in ``target[rows] += gamma * v``.

    The product contains something called gamma or discount, or a number from 0.5 to 1.
    """
    for node in source.nodes_of(ast.BinOp, ast.AugAssign):
        if not isinstance(node.op, ast.Add):
            continue
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        if isinstance(node, ast.AugAssign) and isinstance(left, ast.Subscript):
            left = left.value
        for reward, product in ((left, right), (right, left)):
            read = [e for v in origins(source, reward, 3) for e in nodes_in(v, ast.Name, ast.Attribute)]
            if any(_REWARD.search(last_name(each)) for each in read):
                yield from ((reward, each) for each in _discounted(source, product))


def _discounted(source: SourceFile, product: ast.expr) -> Iterator[ast.expr]:
    """Yield the factors of the nearest product with a discount from which an expression has its value."""
    for value in origins(source, product, 3):
        inner = without_views(value)
        _, parts = factors(inner)
        nodes = nodes_in(inner, ast.Constant, ast.Name, ast.Attribute)
        if isinstance(inner, ast.BinOp) and parts != [inner] and any(map(_is_discount, nodes)):
            yield from parts
            return


def _is_discount(node: ast.Constant | ast.Name | ast.Attribute) -> bool:
    if isinstance(node, ast.Constant):
        is_named = isinstance(node.value, str) and _DISCOUNT.search(node.value)
        return bool(is_named) or (isinstance(node.value, float) and 0.5 <= node.value < 1)
    return bool(_DISCOUNT.search(last_name(node)))


def product_factors(node: ast.expr) -> list[ast.expr]:
    """Return all factors of a product, also its numbers."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*product_factors(node.left), *product_factors(node.right)]
    return [node]


def without_views(node: ast.expr) -> ast.expr:
    """Return the tensor of an expression such as ``float(q.detach().view(-1))``."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(attr=attr, value=ast.Name(id="torch")), args=[inner, *_]) if (
                attr in _VIEWS
            ):
                node = inner
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _VIEWS:
                node = inner
            case ast.Call(args=[inner, *_]) if last_name(node.func) in ("float", "as_tensor", "tensor", "from_numpy"):
                node = inner
            case _:
                return node


def stored_rows(source: SourceFile, name: ast.Name) -> list[ast.expr]:
    """Return what the function around a name stores in rows of that tensor, as in ``values[mask] = ...``."""
    return [
        each.value
        for each in nodes_in(function_of(source, name), ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id == name.id
    ]
