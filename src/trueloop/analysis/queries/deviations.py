"""Finds the expressions that a program uses as standard deviations."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.possible_values import default_of
from trueloop.analysis.queries.reparameterisations import operands
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name

_NOISE: Final = re.compile(r"randn|^eps|_eps$|epsilon|noise|normal", re.IGNORECASE)
_QUANTILES: Final = frozenset((1.28, 1.2816, 1.64, 1.645, 1.959964, 1.96, 2.33, 2.58, 2.576))


@lru_cache(maxsize=1)  # rules of one file follow each other
def deviations(source: SourceFile) -> tuple[tuple[ast.AST, ast.expr], ...]:
    """Return the expressions that are used as deviations: of a distribution, of noise, or in a half width."""
    return tuple(_deviations(source))


def _deviations(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr]]:
    for call in source.all_calls:
        if last_name(call.func) in ("Normal", "LogNormal") or dotted_name(call.func) == "torch.normal":
            named = [each.value for each in call.keywords if each.arg in ("scale", "std")]
            yield from ((call, each) for each in (*call.args[1:2], *named))
    for node in source.nodes_of(ast.BinOp):
        if isinstance(node.op, ast.Add):
            for product in (node.left, node.right):
                yield from ((node, each) for each in _factors_of_noise(source, product))
        if isinstance(node.op, ast.Mult):
            for factor, number in ((node.left, node.right), (node.right, node.left)):
                known = number if isinstance(number, ast.Constant) else default_of(source, number)
                if isinstance(known, ast.Constant) and known.value in _QUANTILES:
                    yield node, factor


def _factors_of_noise(source: SourceFile, product: ast.expr) -> Iterator[ast.expr]:
    for left, right in operands(product, ast.Mult, ("mul", "mul_")):
        yield from (factor for factor, other in ((left, right), (right, left)) if is_noise(source, other))


def is_noise(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a call or variable whose name, or the name of a call whose result it holds, says normal noise."""
    called = last_name(node.func) if isinstance(node, ast.Call) else last_name(node)
    return bool(_NOISE.search(called)) or any(
        isinstance(each, ast.Call) and _NOISE.search(last_name(each.func)) for each in stored_values(source, node)
    )


def stored_values(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return what is assigned to a variable; the expression itself if it is none."""
    if not isinstance(node, ast.Name):
        return [node]
    return assigned_in(function_of(source, node), node.id)
