"""A feature of a forecast is smoothed over later values of the series, which contain what shall be predicted.

What you see
    The held-out score of the forecast, or of the back-test, is far better than the score on new data, where the later
    values do not exist yet.

Why it happens
    Most smoothing functions are centred: the value at time t is a mean of values before and after t.
    ``np.convolve(x, kernel, mode="same")``, ``rolling(..., center=True)``, ``filtfilt`` and ``savgol_filter`` are such
    functions. A split by time does not help: each row has the next values in its own features.

Fix
    Smooth over past values only.

        table["mean"] = table["price"].rolling(5).mean()
        mean = np.convolve(price, np.ones(5) / 5)[: len(price)]
        smooth = scipy.signal.lfilter(b, a, price)

When this is fine
    - A recording is smoothed as a whole, and the model classifies the recording, or the same time.
    - Only the target is smoothed, such as the trend that shall be predicted.
    - The smoothed values are shifted to later rows by at least half the window.
    - Only the values of one input window are smoothed, which are all known.
    - The smoothed curve is only shown.

How it is detected
    Only the linter finds it, from the source code: a series that a centred function smooths as a whole, also in a
    function of the program, while the function that does this takes a target from later values of the same series:
    ``price[5:] > price[:-5]``, ``price.shift(-1)`` or ``price[t + 5]`` as a label, target or future value.

References
    pandas.DataFrame.rolling, https://pandas.pydata.org/docs/reference/api/pandas.DataFrame.rolling.html
    numpy.convolve, https://numpy.org/doc/stable/reference/generated/numpy.convolve.html
    Kaufman et al., "Leakage in Data Mining: Formulation, Detection, and Avoidance", 2012,
    https://doi.org/10.1145/2382577.2382579
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of, is_label
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import enclosing_expressions, parameters_of
from trueloop.analysis.queries.shuffled_loaders import passed_argument
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SAME: Final = frozenset(("convolve", "fftconvolve", "oaconvolve"))
"""Functions that are centred with ``mode="same"``."""
_CENTRED: Final = {
    "convolve1d": 0, "filtfilt": 2, "gaussian_filter1d": 0, "hpfilter": 0, "lowess": 0, "medfilt": 0,
    "savgol_filter": 0, "seasonal_decompose": 0, "sosfiltfilt": 1, "uniform_filter1d": 0,
}  # fmt: skip
"""Functions that are centred -> position of the series."""
_FUTURE: Final = re.compile(r"future|next|ahead|forward|fwd|direction|(^|_)(up|y\d?)(_|$)", re.IGNORECASE)
_SHOWN: Final = re.compile(r"plot|scatter|fill_between|show|print|savefig|^line$")
_MAX_DEPTH: Final = 2


class _Smoothing(NamedTuple):
    """A series that is smoothed over earlier and later values."""

    node: ast.expr
    series: ast.expr
    centred: ast.expr
    """The call of the centred function."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each series that is smoothed over later values, where a target is taken from later values of it."""
    reported = set[int]()
    for call in source.all_calls:
        series = _series(call)
        for each in _with_callers(source, _Smoothing(call, series, call)) if series is not None else ():
            target = None if _is_no_feature(source, each.node) else _later_target(source, each)
            if target is not None and id(each.centred) not in reported:
                reported.add(id(each.centred))
                yield Hit(
                    message=f"`{ast.unparse(each.centred)}` is centred: at each step it uses later values of "
                    f"`{ast.unparse(each.series)}`, which contain what `{ast.unparse(target)[:60]}` shall predict.",
                    node=each.centred,
                    related=((target, "the target, from later values"),)
                    + (((each.node, "smoothed here"),) if each.node is not each.centred else ()),
                )


def _series(call: ast.Call) -> ast.expr | None:
    """Return the series that a centred function smooths as a whole; None for other calls."""
    name, named = last_name(call.func), {each.arg: each.value for each in call.keywords}
    if name == "rolling" and isinstance(call.func, ast.Attribute):
        return call.func.value if getattr(named.get("center"), "value", False) is True else None
    if name in _SAME:
        mode = named.get("mode") or (call.args[2] if len(call.args) > 2 else None)
        return call.args[0] if call.args and getattr(mode, "value", "") == "same" else None
    position = _CENTRED.get(name)
    if position is None or len(call.args) <= position or named.keys() & {"origin", "two_sided"}:
        return None
    return call.args[position]


def _with_callers(source: SourceFile, smoothing: _Smoothing, depth: int = _MAX_DEPTH) -> Iterator[_Smoothing]:
    """Yield a smoothing, and the calls of the function that returns its result."""
    yield smoothing
    function, name = function_of(source, smoothing.node), _path(smoothing.series)
    if not depth or not isinstance(function, ast.FunctionDef) or name not in [e.arg for e in parameters_of(function)]:
        return
    results = {last_name(target) for target in _targets(source, smoothing.node)}
    for each in nodes_in(function, ast.Return):
        parts = set(map(id, ast.walk(each)))
        if id(smoothing.node) in parts or any(n.id in results for n in nodes_in(each, ast.Name)):
            for call in definitions(source).calls.get(function.name, []):
                series = passed_argument(source, function, call, name)
                if series is not None:
                    yield from _with_callers(source, _Smoothing(call, series, smoothing.centred), depth - 1)
            break


def _targets(source: SourceFile, node: ast.AST) -> list[ast.expr]:
    statement = source.statement_of(node)
    return list(statement.targets) if isinstance(statement, ast.Assign) else []


def _is_no_feature(source: SourceFile, node: ast.expr) -> bool:
    """Return True if smoothed values are a target, are moved to later rows, or are only shown."""
    calls = [each for each in enclosing_expressions(source, node) if isinstance(each, ast.Call)]
    shifts = [each.args for each in calls if last_name(each.func) == "shift"]
    if _is_shown(source, node) or any(not args or (integer(args[0]) or 0) >= 0 for args in shifts):
        return True
    targets = _targets(source, node)
    names = [each.id for each in targets if isinstance(each, ast.Name)]
    if any(_is_later_name(each) for each in targets):
        return True
    used = [e for e in nodes_in(function_of(source, node), ast.Name) if e.id in names and isinstance(e.ctx, ast.Load)]
    return bool(names) and all(_is_shown(source, each) for each in used)


def _is_shown(source: SourceFile, node: ast.AST) -> bool:
    calls = [each for each in enclosing_expressions(source, node) if isinstance(each, ast.Call)]
    return any(_SHOWN.search(last_name(each.func)) for each in calls)


def _is_later_name(node: ast.expr) -> bool:
    """Return True for a variable or column with the name of a target, or of a value in the future."""
    name = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else ""
    name = name if isinstance(name, str) and name else last_name(node)
    return bool(name) and (is_label(ast.Name(name)) or _FUTURE.search(name) is not None)


def _later_target(source: SourceFile, smoothing: _Smoothing) -> ast.expr | None:
    """Return the target that a function takes from later values of a series, or of smoothed values that it cuts."""
    function = function_of(source, smoothing.node)
    smoothed = [_path(each) for each in _targets(source, smoothing.node)]
    names = [_path(smoothing.series), *(each for each in smoothed if _is_cut(function, each))]
    found = (_later_target_of(source, function, name) for name in names if name)
    return next((each for each in found if each is not None), None)


def _is_cut(function: Any, name: str) -> bool:
    """Return True if a function cuts windows out of an array: ``smooth[t : t + length]``."""
    cuts = (each for each in nodes_in(function, ast.Subscript) if isinstance(each.slice, ast.Slice))
    return any(_path(each.value) == name and each.slice.lower and each.slice.upper for each in cuts)  # type: ignore[attr-defined]


def _later_target_of(source: SourceFile, function: Any, name: str) -> ast.expr | None:
    for each in nodes_in(function, ast.Assign, ast.Compare, ast.Call):
        if function_of(source, each) is not function:
            continue
        match each:
            case ast.Compare(left=left, ops=[ast.Gt() | ast.Lt() | ast.GtE() | ast.LtE()], comparators=[right]):
                sides = {_later(left, name), _later(right, name)}
                if sides == {True, False} and all(_has_series(side, name) for side in (left, right)):
                    return each
            case ast.Assign():
                for target, value in assigned_pairs(each):
                    if _is_later_name(target) and _later(value, name):
                        return value
            case ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[value]):
                if _is_later_name(owner) and _later(value, name):
                    return value
            case _:
                pass
    return None


def _has_series(node: ast.expr, name: str) -> bool:
    return any(_path(each) == name for each in nodes_in(node, ast.Name, ast.Attribute, ast.Subscript))


def _later(node: ast.expr, name: str) -> bool:
    """Return True for an expression with later values of a series: ``s[5:]``, ``s[t + 5]`` or ``s.shift(-1)``."""
    for each in nodes_in(node, ast.Subscript, ast.Call):
        match each:
            case ast.Subscript(value=value, slice=ast.Slice(lower=ast.expr() as start, upper=None)):
                is_later = not isinstance(start, ast.UnaryOp)
            case ast.Subscript(value=value, slice=ast.BinOp(op=ast.Add())):
                is_later = True
            case ast.Call(func=ast.Attribute(attr="shift", value=value), args=[rows]):
                is_later = isinstance(rows, ast.UnaryOp)
            case ast.Call(func=func, args=[value, ast.UnaryOp()]):
                is_later = last_name(func) == "roll"
            case _:
                continue
        if is_later and _path(value) == name:
            return True
    return False


def _path(node: ast.expr) -> str:
    """Return a variable, attribute or column of a table as text, without conversions; "" for others."""
    while True:
        match node:
            case ast.Subscript(value=table, slice=ast.Constant(value=str(column))):
                return f"{dotted_name(table)}.{column}"
            case ast.Attribute(value=inner, attr="values"):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="to_numpy" | "astype" | "numpy" | "copy")):
                node = inner
            case ast.Call(func=func, args=[inner, *_]) if last_name(func) in ("asarray", "array"):
                node = inner
            case _:
                return dotted_name(node)


RULE = Rule(
    required_words=(
        "convolve|rolling(|filtfilt|savgol_filter|filter1d|medfilt|decompose|hpfilter|lowess",
        "same|center|filt|convolve1d|decompose|lowess",
        "torch",
        re.compile(r"shift\(|roll\(|\w:\]|\+ ?\w+\]"),
    ),
    find=find,
)

BAD = """
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
price = 100 + np.cumsum(rng.normal(size=600))
smooth = np.convolve(price, np.ones(9) / 9, mode="same")
features = np.stack([price - smooth, np.gradient(price)], axis=1)[20:-20]
target = (price[5:] > price[:-5])[20 : 20 + len(features)]
x, y = torch.from_numpy(features).float(), torch.from_numpy(target).float()
model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(400).split(40):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[rows]).squeeze(1), y[rows]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT057",
    title="Features are smoothed over later values",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {'np.convolve(price, np.ones(9) / 9, mode="same")': "np.convolve(price, np.ones(9) / 9)[: len(price)]"},
    ),
    fix="Smooth over past values only: rolling(...) without center=True, lfilter, or a window that ends at each step.",
    rule=RULE,
)
