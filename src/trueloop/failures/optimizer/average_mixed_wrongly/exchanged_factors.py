"""Finds weighted sums of two networks whose factors are exchanged, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Rule
from trueloop.failures.optimizer.average_mixed_wrongly.copied_anew import find_copied_anew

MAX_OWN: Final = 0.1  # an average that keeps less of itself in each update is a copy
_ASSUMED: Final = {"tau": 0.005, "decay": 0.999}
"""Word in the name of a weight -> the value that it usually has."""
_REINFORCEMENT: Final = re.compile(r"reward|gamma|critic|replay|q_net", re.IGNORECASE)
_VIEWS: Final = frozenset(("data", "detach", "clone", "float", "cpu", "to", "weight"))
_STATES: Final = frozenset(("parameters", "named_parameters", "state_dict", "buffers"))


class _Update(NamedTuple):
    """A weighted sum that is assigned to one of its parts."""

    node: Any
    own: ast.expr
    """The weight of the part that is assigned."""
    complement: bool
    """Whether its weight is 1 - ``own``."""
    parts: tuple[ast.expr, ...] = ()
    """The two parts of the sum."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each update of an average that gives it almost no weight, or that begins with a new copy."""
    yield from find_copied_anew(source)
    loops = list(source.nodes_of(ast.For, ast.DictComp))
    for loop in loops:
        iterables = [loop.iter] if isinstance(loop, ast.For) else [each.iter for each in loop.generators]
        calls = [each for of in iterables for each in nodes_in(of, ast.Call)]
        if not any(last_name(each.func) in _STATES for each in calls) and "state" not in ast.unparse(iterables[0]):
            continue
        for update in _updates(loop):
            weight = _number(source, update.own)
            own = None if weight is None else 1 - weight if update.complement else weight
            if own is not None and 0 < own <= MAX_OWN:
                yield Hit(
                    message=f"`{ast.unparse(update.node)}` keeps only {own:.3g} of the average in each update: the two "
                    "weights are exchanged, so it is a copy of the other network.",
                    node=update.node,
                    fix=_exchanged(source, *update.parts) if update.parts else None,
                )


def _exchanged(source: SourceFile, one: ast.expr, other: ast.expr) -> Fix:
    """Return the fix that exchanges the two parts of a sum."""
    edits = (
        source.text.replace(one, source.text.segment(other)),
        source.text.replace(other, source.text.segment(one)),
    )
    return Fix(edits, safe=False, description="Exchange the two parts")


def _updates(loop: ast.AST) -> Iterator[_Update]:
    """Yield the weighted sums in a loop that are assigned to one of their parts."""
    for node in nodes_in(loop, ast.Assign, ast.Call):
        match node:
            case ast.Assign(targets=[target], value=ast.BinOp() as value):
                yield from _of_sum(node, target, value)
            case ast.Call(func=ast.Attribute(value=target, attr="copy_"), args=[ast.BinOp() as value, *_]):
                yield from _of_sum(node, target, value)
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Attribute(value=_, attr="mul_"), args=[weight]), attr="add_")
            ):
                yield _Update(node, weight, complement=False)
            case ast.Call(func=ast.Attribute(attr="lerp_"), args=[_, weight]):
                yield _Update(node, weight, complement=True)
            case _:
                pass


def _of_sum(node: ast.AST, target: ast.expr, value: ast.BinOp) -> Iterator[_Update]:
    """Yield the update if a value is ``a * x + b * y``, where one of x and y is the target and b is 1 - a."""
    products = (value.left, value.right)
    if not isinstance(value.op, ast.Add) or not all(_is_product(each) for each in products):
        return
    for product, other in (products, products[::-1]):
        for weight, part in _factors(product):
            complements = [each for factor, each in _factors(other) if _is_complement(weight, factor)]
            if ast.unparse(_plain(part)) == ast.unparse(_plain(target)) and complements:
                yield _Update(node, weight, complement=False, parts=(part, complements[0]))
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


def _plain(node: ast.expr) -> ast.expr:
    """Return the parameter of ``parameter.data`` or ``parameter.detach()``."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) | ast.Attribute(value=inner, attr=attr) if (
                attr in _VIEWS
            ):
                node = inner
            case _:
                return node


def _number(source: SourceFile, node: ast.expr) -> float | None:
    """Return the value of a weight; None if it is unknown."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and initial_number(node.left) == 1:
        inner = _number(source, node.right)
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


RULE = Rule(
    required_words=(
        "for ",
        "parameters()|state_dict|state",
        "1 -|1-|1.0 -|1.0-|1. -|lerp_|mul_(",
        "ema|EMA|ecay|alpha|tau|oment|avg|verage|olyak|shadow|arget|eacher|beta|slow",
    ),
    find=find,
)
