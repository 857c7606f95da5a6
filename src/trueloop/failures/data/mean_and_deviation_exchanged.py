"""Mean and standard deviation are exchanged: the deviation is subtracted, and the result divided by the mean.

What you see
    Training is slow or unstable. Where a mean is near 0, the inputs become huge or NaN; where all means are positive,
    the inputs only have another scale, and a pretrained model is worse than it should be.

Why it happens
    Both are numbers, or tensors of one shape, and often travel as a pair. ``torch.std_mean`` returns the deviation
    first, ``Normalize`` takes the mean first, and nothing can tell one from the other.

Fix
    Subtract the mean, and divide by the deviation.

        x = (x - mean) / std
        std, mean = torch.std_mean(x)
        transforms.Normalize(mean, std)

When this is fine
    - The mean itself, or a deviation, is put in relation to the mean: ``(mean - std) / mean``.
    - ``weight * mean + std`` is a score or a loss, not the inverse of a normalisation.

How it is detected
    Only the linter finds it, from the source code, by where values come from (``.std()``, ``np.mean(...)``), or else by
    names: a deviation that is subtracted before a division by a mean, in one expression or in two statements;
    ``x * mean + std`` in a function that normalises, or is named after the inverse; ``Normalize`` with exchanged
    arguments, also as numbers: channels between 0 and 1 cannot deviate by more than ``sqrt(m * (1 - m))`` from a mean
    of m; and ``mean, std = torch.std_mean(x)``.

References
    torch.std_mean, https://docs.pytorch.org/docs/stable/generated/torch.std_mean.html
    torchvision.transforms.Normalize,
    https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.Normalize.html
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes, possible_values, unpacked_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MEANS: Final = frozenset(("mean", "means", "mu", "nanmean", "average"))
_DEVIATIONS: Final = frozenset(("std", "stds", "stdev", "stddev", "nanstd", "deviation", "sigma"))
_VARIANCES: Final = frozenset(("var", "variance", "vars"))
_CONVERSIONS: Final = frozenset((
    "to", "float", "double", "view", "reshape", "unsqueeze", "squeeze", "item", "numpy", "cpu", "cuda", "clone", "copy",
    "expand", "expand_as", "astype", "detach", "clamp", "clamp_min", "type_as", "tolist", "clip", "half", "flatten",
    "tensor", "as_tensor", "from_numpy", "asarray", "array", "FloatTensor", "Tensor", "maximum", "list", "tuple",
))  # fmt: skip
_LIBRARIES: Final = frozenset(("torch", "np", "numpy", "th", "statistics", "jnp"))
_SQUARED: Final = re.compile(r"\*\*|pow|square|abs|norm|diff")
_UNDOING: Final = re.compile(
    r"de_?norm|un_?norm|inv|de_?standard|un_?standard|un_?scale|de_?scale|restore|recover", re.I
)
_ONE_CHANNEL: Final = ((0.1307, 0.3081), (0.2860, 0.3530))
"""Mean and deviation of MNIST and FashionMNIST."""
_COEFFICIENT: Final = re.compile(r"alpha|beta|gamma|kappa|lam|coef|weight|factor|risk|temp|(^|_)(k|c|a|b|w|n)$", re.I)
_MAX_DEPTH: Final = 6


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each place where mean and deviation are exchanged."""
    for node in source.nodes_of(ast.BinOp):
        match node:
            case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Sub(), left=x, right=subtracted), right=divisor):
                yield from _normalised(source, node, x, subtracted, divisor)
            case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.Mult()) as scaled, right=added):
                yield from _restored(source, node, scaled, added)
            case ast.BinOp(op=ast.Add(), left=added, right=ast.BinOp(op=ast.Mult()) as scaled):
                yield from _restored(source, node, scaled, added)
            case _:
                pass
    for call in source.all_calls:
        yield from _in_methods(source, call)
        yield from _in_transform(source, call)
    for statement in source.nodes_of(ast.Assign):
        yield from _unpacked(statement)
    yield from _in_two_statements(source)


def _normalised(
    source: SourceFile, node: Any, x: ast.expr | None, subtracted: ast.expr, divisor: ast.expr
) -> Iterator[Hit]:
    """Yield ``(x - std) / mean``."""
    are_exchanged = _kind(source, subtracted) == "deviation" and _kind(source, divisor) == "mean"
    if are_exchanged and (x is None or not _kind(source, x)):
        yield Hit(
            message=f"The standard deviation `{ast.unparse(subtracted)}` is subtracted, and the result is divided by "
            f"the mean `{ast.unparse(divisor)}`: they are exchanged.",
            node=node,
        )


def _restored(source: SourceFile, node: ast.BinOp, scaled: ast.BinOp, added: ast.expr) -> Iterator[Hit]:
    """Yield ``x * mean + std``."""
    factors = [(scaled.left, scaled.right), (scaled.right, scaled.left)]
    found = next((mean for x, mean in factors if _kind(source, mean) == "mean" and _is_tensor(source, x)), None)
    if found is None or _kind(source, added) != "deviation" or not _undoes(source, node, found, added):
        return
    yield Hit(
        message=f"`{ast.unparse(node)}` multiplies by the mean and adds the standard deviation: they are exchanged.",
        node=node,
    )


def _is_tensor(source: SourceFile, x: ast.expr) -> bool:
    """Return False for a coefficient, as in ``beta * mean + std``."""
    return not isinstance(x, ast.Constant) and not _kind(source, x) and not _COEFFICIENT.search(last_name(x))


def _undoes(source: SourceFile, node: ast.expr, mean: ast.expr, deviation: ast.expr) -> bool:
    """Return True if the program normalises with this pair, or the function is named after the inverse."""
    function = function_of(source, node)
    if _UNDOING.search(getattr(function, "name", "")):
        return True
    for each in nodes_in(function, ast.BinOp):
        match each:
            case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Sub(), right=a), right=b):
                if last_name(_bare(a)) == last_name(mean) and last_name(_bare(b)) == last_name(deviation):
                    return bool(last_name(mean))
            case _:
                pass
    return False


def _in_methods(source: SourceFile, call: ast.Call) -> Iterator[Hit]:
    """Yield ``x.sub(std).div(mean)`` and ``x.mul(mean).add(std)``."""
    match call:
        case ast.Call(
            func=ast.Attribute(
                attr="div" | "div_", value=ast.Call(func=ast.Attribute(attr="sub" | "sub_", value=x), args=[subtracted])
            ),
            args=[divisor],
        ):
            yield from _normalised(source, call, x, subtracted, divisor)
        case ast.Call(
            func=ast.Attribute(
                attr="add" | "add_", value=ast.Call(func=ast.Attribute(attr="mul" | "mul_"), args=[factor])
            ),
            args=[added],
        ) if _kind(source, factor) == "mean" and _kind(source, added) == "deviation":
            yield Hit(
                message=f"`{ast.unparse(call)}` multiplies by the mean and adds the standard deviation: they are "
                "exchanged.",
                node=call,
            )
        case _:
            pass


def _in_two_statements(source: SourceFile) -> Iterator[Hit]:
    """Yield ``x -= std`` before ``x /= mean``, also as ``x.sub_(std)``, or with ``x = x - std``."""
    for statement in source.nodes_of(ast.AugAssign, ast.Assign, ast.Expr):
        name, operation, subtracted = _change(statement)
        if operation != "sub" or subtracted is None:
            continue
        block = source.block(statement)
        following = next((later for first, later in pairwise(block) if first is statement), None)
        other, operation, divisor = _change(following) if following is not None else ("", "", None)
        if operation == "div" and other == name and divisor is not None:
            yield from _normalised(source, statement, None, subtracted, divisor)


def _change(statement: ast.stmt) -> tuple[str, str, ast.expr | None]:
    """Return the variable that a statement changes, "sub" or "div", and by what."""
    match statement:
        case ast.AugAssign(target=target, op=ast.Sub() | ast.Div() as op, value=value):
            return ast.unparse(target), "sub" if isinstance(op, ast.Sub) else "div", value
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Sub() | ast.Div() as op, right=value)) if (
            ast.unparse(target) == ast.unparse(left)
        ):
            return ast.unparse(target), "sub" if isinstance(op, ast.Sub) else "div", value
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="sub_" | "div_" as attr, value=target), args=[value])):
            return ast.unparse(target), attr[:-1], value
        case _:
            return "", "", None


def _in_transform(source: SourceFile, call: ast.Call) -> Iterator[Hit]:
    """Yield ``Normalize(std, mean)``, with variables or numbers."""
    name = last_name(call.func)
    if name not in ("Normalize", "normalize"):
        return
    offset = 1 if name == "normalize" else 0
    is_other = offset and len(call.args) != 3 and not {"mean", "std"} <= {each.arg for each in call.keywords}
    if is_other:  # torch.nn.functional.normalize
        return
    mean, deviation = argument_node(call, "mean", offset), argument_node(call, "std", offset + 1)
    match call.args[offset:]:
        case [ast.Starred(value=pair)]:
            values = possible_values(source, pair)
            items = values[0].elts if len(values) == 1 and isinstance(values[0], ast.Tuple) else []
            mean, deviation = items if len(items) == 2 else (None, None)
        case _:
            pass
    if mean is None or deviation is None:
        return
    kinds = _kind(source, mean), _kind(source, deviation)
    if kinds == ("deviation", "mean") or _are_exchanged(_numbers(source, mean), _numbers(source, deviation)):
        yield Hit(
            message=f"`{ast.unparse(mean)}` is passed to `{name}` as the mean and `{ast.unparse(deviation)}` as the "
            "standard deviation: they are exchanged.",
            node=call,
        )


def _numbers(source: SourceFile, node: ast.expr) -> tuple[float, ...]:
    """Return the numbers of a tuple or list, also where a variable holds it; () for others."""
    values = possible_values(source, node)
    node = values[0] if len(values) == 1 else node
    items = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    numbers = [e.value for e in items if isinstance(e, ast.Constant) and isinstance(e.value, float | int)]
    return tuple(map(float, numbers)) if len(numbers) == len(items) else ()


def _are_exchanged(means: tuple[float, ...], deviations: tuple[float, ...]) -> bool:
    """Return True if the numbers fit values between 0 and 1 only in the other order."""
    if len(means) != len(deviations):
        return False
    if len(means) == 1:
        return any(abs(means[0] - known[1]) < 1e-3 and abs(deviations[0] - known[0]) < 1e-3 for known in _ONE_CHANNEL)
    pairs = [*zip(means, deviations, strict=True)]
    fit_exchanged = all(0 < m < s < 1 and m * m <= s * (1 - s) for m, s in pairs)
    return len(pairs) == 3 and fit_exchanged and any(s * s > m * (1 - m) for m, s in pairs)


def _unpacked(statement: ast.Assign) -> Iterator[Hit]:
    """Yield ``mean, std = torch.std_mean(x)``."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=[first, second])], value=ast.Call(func=func)) if last_name(func) in (
            "std_mean", "var_mean"
        ):  # fmt: skip
            if _named(first) == "mean" and (
                _named(second) == "deviation" or name_words(last_name(second)) & _VARIANCES
            ):
                yield Hit(
                    message=f"`{last_name(func)}` returns the mean last, but `{ast.unparse(first)}` is the first "
                    "variable.",
                    node=statement,
                )
        case _:
            pass


def _kind(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> str:
    """Return "mean", "deviation", or "" for what an expression is, by its value or else by its name."""
    node = _bare(node)
    if isinstance(node, ast.Call):
        return _kind_of_call(source, node, depth)
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return ""
    values = possible_values(source, node) if depth else []
    kinds = {_kind(source, each, depth - 1) for each in values}
    if len(kinds) == 1 and "" not in kinds:
        return kinds.pop()
    return _named(node) or ("" if values else _kind_in_pair(source, node))


def _kind_in_pair(source: SourceFile, node: ast.expr) -> str:
    """Return the kind of a variable that is assigned by ``a, b = torch.std_mean(x)``."""
    call = unpacked_call(source, node)
    if call is None or last_name(call.func) not in ("std_mean", "var_mean"):
        return ""
    pair = next((e.targets[0] for e in enclosing_nodes(source, call) if isinstance(e, ast.Assign)), None)
    items = [last_name(each) for each in pair.elts] if isinstance(pair, ast.Tuple) else []
    return ("deviation", "mean")[items.index(last_name(node))] if last_name(node) in items[:2] else ""


def _bare(node: ast.expr) -> ast.expr:
    """Return an expression without conversions, indices and a small number added to it."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(attr=attr, value=inner), args=args) if attr in _CONVERSIONS:
                is_function = isinstance(inner, ast.Name) and inner.id in _LIBRARIES
                if is_function and not args:
                    return node
                node = args[0] if is_function else inner
            case ast.Call(func=ast.Name(id="float" | "tuple" | "list"), args=[inner]):
                node = inner
            case ast.Subscript(value=inner, slice=ast.Tuple() | ast.Slice() | ast.Constant(value=None)):
                node = inner
            case ast.BinOp(op=ast.Add(), left=inner, right=right) if _is_small(right):
                node = inner
            case _:
                return node


def _is_small(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and node.value <= 0.01
    return "eps" in last_name(node).lower()


def _kind_of_call(source: SourceFile, call: ast.Call, depth: int) -> str:
    """Return the kind of ``x.mean(0)``, ``np.std(x)`` or what a function of the program returns."""
    name = last_name(call.func)
    if name in _DEVIATIONS or name == "var":
        return "deviation"
    if name in ("sqrt", "sqrt_") and depth:
        root = call.args[0] if call.args else getattr(call.func, "value", call)
        return _kind(source, root, depth - 1) if root is not call else ""
    if name in _MEANS:
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        averaged = call.args[0] if call.args and last_name(inner) in _LIBRARIES else inner
        if averaged is None or _SQUARED.search(ast.unparse(averaged)):
            return ""
        return "deviation" if depth and _kind(source, averaged, depth - 1) == "deviation" else "mean"
    kinds = {_kind(source, each, depth - 1) for each in possible_values(source, call)} if depth else set[str]()
    return kinds.pop() if len(kinds) == 1 else ""


def _named(node: ast.expr) -> str:
    """Return the kind that a name tells: ``std_x``, ``IMAGENET_MEAN``, ``stats["mean"]``, ``scaler.scale_``."""
    name = last_name(node)
    if isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        name = key if isinstance(key, str) else name
    if name == "scale_":
        return "deviation"
    words = name_words(name)
    is_mean = any(word in _MEANS or word.endswith("mean") for word in words)
    is_deviation = any(word in _DEVIATIONS or word.endswith("std") for word in words)
    if is_mean is is_deviation or words & _VARIANCES:
        return ""
    return "mean" if is_mean else "deviation"


RULE = Rule(
    required_words=(
        "std|Std|STD|sigma|deviation|scale_|var_mean|.var(|Normalize(|normalize(",
        "mean|Mean|MEAN|mu|average|Normalize(|normalize(",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8) * 3 + 5
y = x.sum(1, keepdim=True) / 8
mean, std = x.mean(0), x.std(0)
x = (x - std) / mean
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT048",
    title="Mean and standard deviation are exchanged",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(x - std) / mean": "(x - mean) / std"}),
    fix="Subtract the mean, and divide by the standard deviation.",
    rule=RULE,
)
