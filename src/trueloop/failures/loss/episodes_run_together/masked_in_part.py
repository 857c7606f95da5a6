"""Finds discounted sums that stop at the end of an episode in one part of a function and not in another."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_in
from trueloop.analysis.queries.possible_values import computed_from
from trueloop.analysis.queries.td_targets import product_factors
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_END: Final = re.compile(
    r"done|term(inal|$|_)|terminat|trunc|finish|(^|_)(over|ended|ends?)($|_)|timeout|mask|alive|contin|where",
    re.IGNORECASE,
)
_DISCOUNT: Final = re.compile(r"gamma|discount", re.IGNORECASE)
_REWARD: Final = re.compile(r"reward|(^|_)(r|rs|rews?|rwds?)($|_)", re.IGNORECASE)
_VALUE: Final = re.compile(r"val|critic|(^|_)(v|vs|vpred|v_preds?|baselines?)(_|$|\d)|next_v", re.IGNORECASE)


class Unmasked(NamedTuple):
    """A discounted part of a sum that ignores the ends of episodes."""

    part: ast.expr
    other: ast.expr
    """A part of the same function that does not."""


class _Part(NamedTuple):
    """A product with the discount in a sum with a reward or a delta."""

    product: ast.expr
    is_carried: bool
    """Whether it has the total of the later steps, not the value of the next state."""


def masked_in_part(source: SourceFile) -> Iterator[Unmasked]:
    """Yield each discounted value or total without a mask, if its function masks a total that is carried on."""
    for function in source.nodes_of(ast.FunctionDef):
        tests = [each.test for each in nodes_in(function, ast.If, ast.IfExp, ast.While)]
        if any(_END.search(name) for test in tests for name in names_in(test)):
            continue
        parts = list(_parts(function))
        masked = [each for each in parts if _is_masked(source, each.product)]
        carried = next((each for each in masked if each.is_carried), None)
        unmasked = [each for each in parts if each not in masked]
        if carried is not None and unmasked:
            yield Unmasked(unmasked[0].product, carried.product)


def _parts(function: ast.FunctionDef) -> Iterator[_Part]:
    for statement in nodes_in(function, ast.Assign):
        target, terms = statement.targets[0], summands(statement.value)
        is_with_reward = any(_REWARD.search(name) for each in terms for name in names_in(each))
        for term in terms:
            factors = product_factors(term)
            if len(factors) < 2 or not any(_DISCOUNT.search(name) for each in factors for name in names_in(each)):
                continue
            if len(terms) > 1 and any(is_previous(each, target) for each in factors):
                yield _Part(term, is_carried=True)
            elif is_with_reward and _is_difference(statement.value) and any(_is_later(function, e) for e in factors):
                yield _Part(term, is_carried=False)


def summands(node: ast.expr) -> list[ast.expr]:
    """Return the terms that a sum adds."""
    match node:
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return [*summands(left), *summands(right)]
        case ast.BinOp(op=ast.Sub(), left=left):
            return summands(left)
        case _:
            return [node]


def _is_difference(node: ast.expr) -> bool:
    return any(isinstance(each.op, ast.Sub) for each in nodes_in(node, ast.BinOp))


def is_previous(node: ast.expr, target: Any) -> bool:
    """Return True for the variable that is assigned, or ``returns[t + 1]`` if that is ``returns[t]``."""
    if isinstance(target, ast.Subscript) and isinstance(node, ast.Subscript):
        is_same = ast.unparse(node.value) == ast.unparse(target.value)
        return is_same and ast.unparse(node.slice) != ast.unparse(target.slice)
    return isinstance(target, ast.Name) and ast.unparse(node) == target.id


def _is_later(function: ast.FunctionDef, node: ast.expr) -> bool:
    """Return True for ``values[t + 1]``, ``values[1:]``, and for ``following`` if a loop has ``following = values[t]``.

    The value of a next state that was stored itself may be that of the last state of its episode.
    """
    if isinstance(node, ast.Name):
        return any(
            isinstance(each, ast.Subscript) and any(map(_VALUE.search, names_in(each.value)))
            for loop in nodes_in(function, ast.For)
            for each in assigned_in(loop, node.id)
        )
    index = ast.unparse(node.slice) if isinstance(node, ast.Subscript) else ""
    return any(map(_VALUE.search, names_in(node))) and ("+ 1" in index or index.startswith("1:"))


def _is_masked(source: SourceFile, product: ast.expr) -> bool:
    """Return True if a product, or what its variables are computed from, names the end of an episode or a mask."""
    nodes = computed_from(source, product, 1)
    return any(_END.search(last_name(each)) for each in nodes if isinstance(each, ast.Name | ast.Attribute))


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names of the variables and attributes in a node."""
    return (last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute))
