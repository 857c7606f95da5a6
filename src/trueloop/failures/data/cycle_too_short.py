"""The sine and cosine of a time use the largest value as the period, so the first and the last value are the same.

What you see
    The model cannot tell midnight from 23:00, or Sunday from Monday. Forecasts have a step at the end of the day or of
    the week. No error is raised.

Why it happens
    Hours go from 0 to 23, but a day has 24 of them: the period is the number of values, not the largest one. With 23,
    the angle of 23:00 is a full turn, which is the angle of 0:00.

Fix
    Divide by the number of values:

        hour_sin = np.sin(2 * np.pi * hour / 24)
        weekday_sin = np.sin(2 * np.pi * weekday / 7)

When this is fine
    - The values begin at 1 and the largest is the period: ``2 * np.pi * month / 12``.
    - The value is only scaled to the range 0 to 1, as in ``hour / 23``, without sine and cosine.

How it is detected
    Only the linter finds it, from the source code: a sine or cosine of two pi times an hour, minute, second, day of the
    week or month, divided by 23, 59, 6 or 11, or an hour or minute divided by its own maximum. It follows variables and
    the arguments of a function that encodes a column.

References
    scikit-learn, "Time-related feature engineering",
    https://scikit-learn.org/stable/auto_examples/applications/plot_cyclical_feature_engineering.html
"""

import ast
import math
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import parameters_of, possible_values
from trueloop.analysis.queries.shuffled_loaders import argument_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_UNITS: Final = {
    23: re.compile(r"(?i)hours?(?![a-z])|(^|_)(h|hrs?)(_|$)"),
    59: re.compile(r"(?i)minutes?(?![a-z])|seconds?(?![a-z])|(^|_)(mins?|secs?)(_|$)"),
    6: re.compile(r"(?i)week_?day|day_?of_?(the_?)?week|(^|_)(dow|wday)(_|$)"),
    11: re.compile(r"(?i)months?(?![a-z])|(^|_)mnth(_|$)"),
}
"""Largest value of a part of a time that is counted from 0 -> its name."""
_FROM_ZERO: Final = (23, 59)
"""Largest values of parts that no convention counts from 1."""
_OTHER: Final = re.compile(r"(?i)(hours?|minutes?|seconds?|days?)_?(of|in|per|since)_?(the_?)?(week|month|year|day)")
"""Names of other cycles, such as the hour of the week; not the day of the week, and not the hour of the day."""
_PLAIN: Final = re.compile(r"(?i)days?_?of_?(the_?)?week|(hours?)_?(of|in)_?(the_?)?day")
_DEPTH: Final = 4


class _Product(NamedTuple):
    """An expression as a product, with the parts that it multiplies and divides by."""

    factors: tuple[ast.expr, ...]
    divisors: tuple[ast.expr, ...]


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each period that is the largest value of what it divides."""
    reported: set[int] = set()
    for call in source.all_calls:
        if last_name(call.func) not in ("sin", "cos") or len(call.args) != 1:
            continue
        product = _product(source, call.args[0])
        if not _is_full_turn(product):
            continue
        for divisor, values in _periods(source, product):
            largest = _largest(divisor, values)
            if largest is None or id(divisor) in reported:
                continue
            reported.add(id(divisor))
            is_number = isinstance(divisor, ast.Constant)
            edit = source.text.replace(divisor, str(largest + 1))
            yield Hit(
                message=f"The period `{ast.unparse(divisor)}` is the largest value, so the sine and cosine of 0 and "
                f"{largest} are the same: a cycle of {largest + 1} values has the period {largest + 1}.",
                node=divisor,
                fix=Fix((edit,), safe=False, description="Divide by the number of values") if is_number else None,
            )


def _product(source: SourceFile, node: ast.expr, depth: int = _DEPTH) -> _Product:
    """Return an expression as a product; a variable that is a product itself is replaced by it."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() as operator, right=right):
            first, second = _product(source, left, depth), _product(source, right, depth)
            if isinstance(operator, ast.Div):
                second = _Product(second.divisors, second.factors)
            return _Product(first.factors + second.factors, first.divisors + second.divisors)
        case ast.Name() | ast.Attribute() | ast.Subscript() if depth:
            values = possible_values(source, node)
            is_product = len(values) == 1 and isinstance(values[0], ast.BinOp)
            inner = _product(source, values[0], depth - 1) if is_product else _Product((), ())
            return inner if inner.divisors or len(inner.factors) > 1 else _Product((node,), ())
        case _:
            return _Product((node,), ())


def _is_full_turn(product: _Product) -> bool:
    """Return True if a product contains two pi."""
    names = [last_name(each) for each in product.factors]
    numbers = [each.value for each in product.factors if isinstance(each, ast.Constant)]
    numbers = [each for each in numbers if isinstance(each, int | float)]
    has_two_pi = "pi" in names and 2 in numbers
    return has_two_pi or "tau" in names or any(math.isclose(each, math.tau, rel_tol=1e-3) for each in numbers)


def _periods(source: SourceFile, product: _Product) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """Yield what divides an angle, with what is divided: in the call of a function if they are its parameters."""
    values = [each for factor in product.factors for each in (factor, *possible_values(source, factor))]
    for divisor in product.divisors:
        yield divisor, values
        function = function_of(source, divisor)
        if not isinstance(divisor, ast.Name) or isinstance(function, ast.Module | ast.Lambda):
            continue
        used = {each.id for factor in product.factors for each in nodes_in(factor, ast.Name)}
        names = [each.arg for each in parameters_of(function)]
        for call in definitions(source).calls.get(function.name, []) if divisor.id in names else ():
            given = {name: argument_of(source, function, call, name) for name in names if name in used | {divisor.id}}
            period = given.pop(divisor.id)
            if period is not None:
                yield period, [each for each in given.values() if each is not None]


def _largest(divisor: ast.expr, values: list[ast.expr]) -> int | None:
    """Return the largest value that a divisor is, of the part of a time that it divides; None for other periods."""
    names = [name for each in values for name in _names(each)]
    if any(_OTHER.search(each) and not _PLAIN.search(each) for each in names):
        return None
    for largest, unit in _UNITS.items():
        is_named = any(unit.search(each) for each in names)
        number = getattr(divisor, "value", None)
        is_largest = isinstance(number, int | float) and number == largest
        is_maximum = isinstance(divisor, ast.Call) and last_name(divisor.func) == "max" and largest in _FROM_ZERO
        if is_named and (is_largest or (is_maximum and any(unit.search(each) for each in _names(divisor)))):
            return largest
    return None


def _names(node: ast.expr) -> list[str]:
    """Return the names and texts in an expression: "hour" for ``data["hour"]`` and for ``time.dt.hour``."""
    names = [last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)]
    return names + [each.value for each in nodes_in(node, ast.Constant) if isinstance(each.value, str)]


RULE: Final = Rule(
    required_words=(
        "sin(|cos(", "pi|tau|6.28", "23|59|6|11|max(", re.compile(r"(?i)hour|minute|second|week|month|dow\b|\bhr")
    ),
    find=find,
)  # fmt: skip

BAD = """
import math
import torch
from torch import nn

torch.manual_seed(0)
hour = torch.randint(0, 24, (512,))
demand = 3 + torch.cos(2 * math.pi * (hour - 18) / 24) + 0.1 * torch.randn(512)
angle = 2 * math.pi * hour / 23
features = torch.stack([torch.sin(angle), torch.cos(angle)], dim=1)
model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(512).split(64):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features[rows]), demand[rows, None]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT062",
    title="The period of a cyclic feature is one too short",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"hour / 23": "hour / 24"}),
    fix="Divide by the number of values, such as 24 hours or 7 days, instead of the largest value.",
    rule=RULE,
)
