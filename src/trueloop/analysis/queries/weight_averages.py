"""Finds the weighted sums in which an average of the weights takes over a share of another network."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_ASSUMED: Final = {"tau": 0.005, "decay": 0.999}
"""Word in the name of a weight -> the value that it usually has."""
_REINFORCEMENT: Final = re.compile(r"reward|gamma|critic|replay|q_net", re.IGNORECASE)
_VIEWS: Final = frozenset(("data", "detach", "clone", "float", "cpu", "to", "weight"))


class WeightedSum(NamedTuple):
    """A weighted sum that is assigned to one of its parts."""

    node: Any
    average: ast.expr
    """The part that is assigned."""
    own: ast.expr
    """The weight of the part that is assigned."""
    complement: bool
    """Whether its weight is 1 - ``own``."""
    parts: tuple[ast.expr, ...] = ()
    """The two parts of the sum."""


def weighted_sums(loop: ast.AST) -> Iterator[WeightedSum]:
    """Yield the weighted sums in a loop that are assigned to one of their parts."""
    for node in nodes_in(loop, ast.Assign, ast.Call):
        match node:
            case ast.Assign(targets=[target], value=ast.BinOp() as value):
                yield from sums_into(node, target, value)
            case ast.Call(func=ast.Attribute(value=target, attr="copy_"), args=[ast.BinOp() as value, *_]):
                yield from sums_into(node, target, value)
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Attribute(value=target, attr="mul_"), args=[weight]), attr="add_"
                )
            ):
                yield WeightedSum(node, target, weight, complement=False)
            case ast.Call(func=ast.Attribute(attr="lerp_", value=target), args=[_, weight]):
                yield WeightedSum(node, target, weight, complement=True)
            case _:
                pass


def sums_into(node: ast.AST, target: ast.expr, value: ast.BinOp) -> Iterator[WeightedSum]:
    """Yield the update if a value is ``a * x + b * y``, where one of x and y is the target and b is 1 - a."""
    products = (value.left, value.right)
    if not isinstance(value.op, ast.Add) or not all(_is_product(each) for each in products):
        return
    for product, other in (products, products[::-1]):
        for weight, part in _factors(product):
            complements = [each for factor, each in _factors(other) if _is_complement(weight, factor)]
            if ast.unparse(parameter_of(part)) == ast.unparse(parameter_of(target)) and complements:
                yield WeightedSum(node, target, weight, complement=False, parts=(part, complements[0]))
                return


def _is_product(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def _factors(product: Any) -> Iterator[tuple[ast.expr, ast.expr]]:
    yield product.left, product.right
    yield product.right, product.left


def _is_complement(weight: ast.expr, other: ast.expr) -> bool:
    """Return True if another factor is 1 - weight."""
    text, written = ast.unparse(weight), ast.unparse(other)
    if written in (f"1 - {text}", f"1.0 - {text}") or text in (f"1 - {written}", f"1.0 - {written}"):
        return True
    numbers = initial_number(weight), initial_number(other)
    return None not in numbers and abs(sum(numbers) - 1) < 1e-9  # type: ignore[arg-type]


def parameter_of(node: ast.expr) -> ast.expr:
    """Return the parameter of ``parameter.data`` or ``parameter.detach()``."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) | ast.Attribute(value=inner, attr=attr) if (
                attr in _VIEWS
            ):
                node = inner
            case _:
                return node


def weight_value(source: SourceFile, node: ast.expr) -> float | None:
    """Return the value of a weight; None if it is unknown."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and initial_number(node.left) == 1:
        inner = weight_value(source, node.right)
        return None if inner is None else 1 - inner
    number = initial_number(node)
    name = last_name(node)
    if number is not None or not name:
        return number
    values = {each for each in _values(source, name) if each is not None}
    if values:
        return values.pop() if len(values) == 1 else None
    words = name_words(name)
    if "tau" in words and not _REINFORCEMENT.search(source.text.source):
        return None  # elsewhere, tau may be the weight of the average
    return next((value for word, value in _ASSUMED.items() if word in words), None)


def _values(source: SourceFile, name: str) -> Iterator[float | None]:
    """Yield the constants that the file assigns to a variable, passes under its name, or that are its default."""
    for each in source.nodes_of(ast.Assign, ast.keyword, ast.arguments):
        if (isinstance(each, ast.Assign) and any(last_name(target) == name for target in each.targets)) or (
            isinstance(each, ast.keyword) and each.arg == name
        ):
            yield initial_number(each.value)
        elif isinstance(each, ast.arguments):
            names = [argument.arg for argument in (*each.posonlyargs, *each.args)]
            defaults = dict(zip(reversed(names), reversed(each.defaults), strict=False))
            keyword_only = {a.arg: default for a, default in zip(each.kwonlyargs, each.kw_defaults, strict=True)}
            yield initial_number({**defaults, **keyword_only}.get(name))
        elif isinstance(each, ast.Call) and last_name(each.func) == "add_argument" and each.args:
            option = each.args[-1].value if isinstance(each.args[-1], ast.Constant) else ""
            if str(option).lstrip("-").replace("-", "_") == name:
                yield next((initial_number(k.value) for k in each.keywords if k.arg == "default"), None)
