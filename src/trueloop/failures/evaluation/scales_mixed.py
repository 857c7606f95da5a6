"""Predictions are converted back to the original scale, and the targets that they are compared with are not.

What you see
    The error is huge although the training loss is small, or the R2 is far below 0. Or it is suspiciously small: an
    RMSE of 0.1 for prices of several hundred thousand.

Why it happens
    The targets were standardised for the training. ``scaler.inverse_transform`` gives the predictions in euros, while
    the targets of the test set still have mean 0 and deviation 1, or the other way round. Both are arrays of numbers of
    the same shape, so subtracting them raises no error.

Fix
    Convert both, or neither.

        predicted = scaler.inverse_transform(model(x_test).numpy())
        actual = scaler.inverse_transform(y_test_scaled)
        rmse = np.sqrt(np.mean((predicted - actual) ** 2))

When this is fine
    - The targets were kept in their original scale.
    - Two scalers were used, one for the inputs and one for the targets.

How it is detected
    Only the linter finds it: a difference, a loss or a metric gets one value from ``inverse_transform`` of a scaler and
    one from ``transform`` or ``fit_transform`` of the same scaler, which nothing has converted back. By hand, it
    compares ``p * std + mean`` with ``(y - mean) / std``. It also reports the output of a model that is compared with
    targets in the original scale, if the model is trained on a scaled part of the same targets. Values are followed
    through variables and conversions.

References
    sklearn.preprocessing.StandardScaler,
    https://scikit-learn.org/stable/modules/generated/sklearn.preprocessing.StandardScaler.html
"""

import ast
import re
from collections.abc import Iterator, Set
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import without_conversions
from trueloop.analysis.queries.possible_values import (
    loops_around,
    origins,
    possible_values,
    unpacked_call,
    without_cycles,
)
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ORIGINAL, _SCALED = "original", "scaled"
_CONVERSIONS: Final = frozenset((
    "tensor", "from_numpy", "as_tensor", "array", "asarray", "FloatTensor", "Tensor", "squeeze", "ravel", "float32",
    "concatenate", "cat", "vstack",
))  # fmt: skip
_METHODS: Final = frozenset((
    "reshape", "view", "flatten", "ravel", "squeeze", "unsqueeze", "astype", "float", "numpy", "copy", "clone", "T",
))  # fmt: skip
_METRIC: Final = re.compile(r"error|loss|_score|rmse|^mae$|^mse$|^mape$|crit|metric", re.IGNORECASE)
_MAX_DEPTH: Final = 8


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of a value in its original scale with a scaled one."""
    compared = list(_compared(source))
    yield from _unscaled_targets(source, compared)
    for node, first, second in compared:
        own, other = _scale(source, first), _scale(source, second)
        if own is None or other is None or own == other or own[1] != other[1]:
            continue
        back, rest = (first, second) if own[0] == _ORIGINAL else (second, first)
        yield Hit(
            message=f"`{ast.unparse(back)}` is in the original scale, but `{ast.unparse(rest)}` is still scaled: their "
            "difference says nothing.",
            node=node,
        )


def _compared(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Yield the differences, losses and metrics, each with its two values."""
    for node in source.nodes_of(ast.BinOp, ast.Call):
        match node:
            case ast.BinOp(left=first, op=ast.Sub(), right=second):
                yield node, first, second
            case ast.Call(func=func, args=[first, second, *_]) if _METRIC.search(last_name(func)):
                yield node, first, second
            case _:
                pass


def _unscaled_targets(source: SourceFile, compared: list[tuple[ast.expr, ast.expr, ast.expr]]) -> Iterator[Hit]:
    """Yield each comparison of a model's output with original targets, though the model is trained on scaled ones."""
    functions = [call.func for call in source.all_calls if isinstance(call.func, ast.Attribute)]
    trained_models = {ast.unparse(each.value) for each in functions if each.attr == "parameters"}
    called = {
        id(each.node)
        for each in source.ops(OpKind.MODEL_CALL)
        if any(ast.unparse(of) in trained_models for of in origins(source, each.node.func, 2))
    }
    datasets = [call.args[-1] for call in source.all_calls if last_name(call.func) == "TensorDataset" and call.args]
    pairs = [
        (node, target)
        for node, first, second in compared
        for output, target in ((first, second), (second, first))
        if _is_output(source, output, called)
    ]
    trained = [scaled for each in (*datasets, *(each for _, each in pairs)) for scaled in _scaled_values(source, each)]
    kept = [(each, scaled) for each, scaled in trained if not _is_overwritten(source, each, scaled)]  # see DAT035
    roots = {_root(source, scaled): each for each, scaled in kept}
    for node, target in pairs if roots else ():
        scaled = roots.get(_root(source, target))
        if scaled is not None and (_scale(source, target) or (_ORIGINAL,))[0] == _ORIGINAL:
            yield Hit(
                message=f"The model is trained on `{ast.unparse(scaled)}`, but its output is compared with "
                f"`{ast.unparse(target)}`, which is in the original scale.",
                node=node,
                related=((scaled, "the training targets are scaled here"),),
            )


def _is_overwritten(source: SourceFile, scaling: ast.expr, scaled: ast.expr) -> bool:
    """Return True for ``y_train = (y_train - mean) / std``, after which ``y_test`` may be left unscaled."""
    statement = source.statement_of(scaling)
    return isinstance(statement, ast.Assign) and ast.unparse(scaled) in map(ast.unparse, statement.targets)


def _is_output(source: SourceFile, node: ast.expr, called: Set[int]) -> bool:
    """Return True for the output of a model, also in a variable."""
    outputs = [_unwrapped(each) for each in origins(source, _unwrapped(node), 2)]
    return bool(outputs) and id(outputs[-1]) in called


def _scaled_values(source: SourceFile, node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the expression that scales an expression's value, with what it scales."""
    for each in origins(source, _unwrapped(node), 4):
        match _unwrapped(each):
            case ast.BinOp(left=ast.BinOp(left=value, op=ast.Sub()), op=ast.Div()) as scaling:
                yield scaling, value
            case ast.Call(func=ast.Attribute(attr="transform" | "fit_transform"), args=[value, *_]) as scaling:
                yield scaling, value
            case _:
                pass


@without_cycles("")
def _root(source: SourceFile, node: ast.expr) -> str:
    """Return the variable of which a value is a part, or the split that made it."""
    node = _unwrapped(node)
    values = possible_values(source, node) if isinstance(node, ast.Name | ast.Attribute) else []
    if len(values) == 1 and isinstance(_unwrapped(values[0]), ast.Name | ast.Attribute):
        return _root(source, values[0])
    call = unpacked_call(source, node) if isinstance(node, ast.Name) else None
    if call is not None:
        return f"line {call.lineno}"
    loop = next((each.iter for each in loops_around(source, node) if _is_bound_by(node, each)), None)
    return ast.unparse(node) if loop is None else f"{ast.unparse(node)} of {loop.lineno}:{loop.col_offset}"


def _is_bound_by(node: ast.expr, loop: ast.For | ast.comprehension) -> bool:
    return any(each.id == getattr(node, "id", "") for each in nodes_in(loop.target, ast.Name))


def _scale(source: SourceFile, node: ast.expr, depth: int = 0) -> tuple[str, str] | None:
    """Return the scale of a value and what was scaled or converted back by it; None if it is not known."""
    node = _unwrapped(node)
    match node:
        case ast.Call(func=ast.Attribute(value=scaler, attr="inverse_transform")):
            return _ORIGINAL, ast.unparse(scaler)
        case ast.Call(func=ast.Attribute(value=scaler, attr="transform" | "fit_transform"), args=[_, *_]):
            return _SCALED, ast.unparse(scaler)
        case ast.BinOp(left=ast.BinOp(op=ast.Mult(), right=factor), op=ast.Add(), right=offset):
            return _ORIGINAL, f"{ast.unparse(offset)}, {ast.unparse(factor)}"
        case ast.BinOp(left=ast.BinOp(op=ast.Sub(), right=offset), op=ast.Div(), right=factor):
            return _SCALED, f"{ast.unparse(offset)}, {ast.unparse(factor)}"
        case ast.Name() | ast.Attribute():
            found = (
                {_scale(source, each, depth + 1) for each in possible_values(source, node)}
                if depth < _MAX_DEPTH
                else ()
            )
            return next(iter(found)) if len(found) == 1 else None
        case _:
            return None


def _unwrapped(node: ast.expr) -> ast.expr:
    """Return the array in ``torch.tensor(x[:, 0]).reshape(-1)``."""
    while True:
        inner = without_conversions(node)
        match inner:
            case ast.Call(func=func, args=[first, *_]) if last_name(func) in _CONVERSIONS:
                inner = first
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _METHODS:
                inner = value
            case ast.Subscript(value=value):
                inner = value
            case _:
                pass
        if inner is node:
            return node
        node = inner


RULE: Final = Rule(
    required_words=("inverse_transform|* std|*std|* scale|_std|* sigma|backward", "transform(|/ |/", "torch"), find=find
)

BAD = """
import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

rng = np.random.default_rng(0)
x = rng.normal(size=(300, 4)).astype("float32")
price = (200_000 + 40_000 * x[:, :1] + 5_000 * rng.normal(size=(300, 1))).astype("float32")
scaler = StandardScaler()
y_train = scaler.fit_transform(price[:240])
y_test = scaler.transform(price[240:])
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
inputs, targets = torch.tensor(x[:240]), torch.tensor(y_train)
for step in range(60):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
with torch.no_grad():
    predicted = scaler.inverse_transform(model(torch.tensor(x[240:])).numpy())
print("RMSE", np.sqrt(np.mean((predicted - y_test) ** 2)))
"""

FAILURE = Failure(
    code="EVL028",
    title="Predictions and targets are on different scales",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"predicted - y_test)": "predicted - price[240:])"}),
    fix="Convert both back to the original scale, or neither.",
    rule=RULE,
)
