"""Finds the sums of a mean and of noise times a standard deviation."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_MEAN: Final = re.compile(r"(^|_)(mu|mus|mean|means|loc|z_mean|m)($|_)", re.IGNORECASE)
_SPREAD: Final = re.compile(r"std|sigma|logvar|log_var|logsigma|(^|_)(lv|scale|sd)($|_)", re.IGNORECASE)
EMPTY: Final = frozenset(("FloatTensor", "Tensor", "empty", "zeros", "new_empty", "new_zeros", "new"))
"""Functions that make a tensor which ``normal_()`` fills."""
_SAME_NUMBERS: Final = re.compile(
    r"^(to|cuda|cpu|float|double|half|type|type_as|detach|clone|expand|expand_as|normal_)$"
)
_MAX_DEPTH: Final = 8


class Reparameterisation(NamedTuple):
    """A sum ``mean + spread * noise``."""

    node: ast.expr
    mean: ast.expr
    spread: ast.expr
    noise: ast.expr


@lru_cache(maxsize=1)  # rules of one file follow each other
def reparameterisations(source: SourceFile) -> tuple[Reparameterisation, ...]:
    """Return the sums whose names say mean and standard deviation or log-variance, or the latter is an ``exp``."""
    return tuple(
        Reparameterisation(node, mean, spread, noise)
        for node in source.nodes_of(ast.BinOp, ast.Call)
        for one, other in operands(node, ast.Add, ("add", "add_"))
        for mean, product in ((one, other), (other, one))
        if _MEAN.search(last_name(mean))
        for left, right in operands(product, ast.Mult, ("mul", "mul_"))
        for noise, spread in ((left, right), (right, left))
        if _is_spread(spread)
    )


def operands(
    node: ast.expr, operator: type[ast.operator], methods: tuple[str, str]
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield both operands of ``a + b`` or ``a.add(b)``."""
    match node:
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, operator):
            yield left, right
        case ast.Call(func=ast.Attribute(attr=attr, value=left), args=[right], keywords=[]) if attr in methods:
            yield left, right
        case _:
            pass


def _is_spread(node: ast.expr) -> bool:
    names = [last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)]
    return any(_SPREAD.search(each) for each in names) or "exp" in names


def drawn_by(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> ast.Call | None:
    """Return the call that makes the numbers of an expression, without changes of type and device; None if unknown."""
    match node:
        case ast.Call(func=ast.Attribute(attr="normal_", value=ast.Call() as made)) if last_name(made.func) in EMPTY:
            return made
        case ast.Call(func=ast.Attribute(attr=attr, value=ast.Call() | ast.Name() as inner)) if _SAME_NUMBERS.match(
            attr
        ):
            return drawn_by(source, inner, depth - 1)
        case ast.Call(func=ast.Name(id="Variable"), args=[inner, *_]):
            return drawn_by(source, inner, depth - 1)
        case ast.Call():
            return node
        case ast.Name() | ast.Attribute() if depth:
            values = possible_values(source, node)
            return drawn_by(source, values[0], depth - 1) if len(values) == 1 else None
        case _:
            return None
