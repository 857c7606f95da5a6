"""Finds outputs of a sigmoid, tanh or ReLU that shall be equal to standardised values, in the source."""

import ast
import math
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import RELU, SIGMOID, VIEWS, remove_activation_fix
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name
from trueloop.failures.failure import Rule

_LOSSES: Final = frozenset(("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "mse_loss", "l1_loss", "smooth_l1_loss"))
_TANH: Final = frozenset(("torch.tanh", "torch.nn.functional.tanh", "torch.Tensor.tanh", "torch.nn.Tanh"))
_RANGES: Final = {
    **dict.fromkeys(SIGMOID, (0.0, 1.0)), **dict.fromkeys(_TANH, (-1.0, 1.0)), **dict.fromkeys(RELU, (0.0, math.inf)),
}  # fmt: skip
_MARGIN: Final = 0.1


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss between the output of an activation and standardised values, which are out of its reach."""
    scalings = list(_scalings(source))
    low, high = max((e[1] for e in scalings), default=0.0), min((e[2] for e in scalings), default=0.0)
    for loss in source.ops(OpKind.LOSS):
        if loss.name.rpartition(".")[2] not in _LOSSES or len(loss.inputs) < 2 or loss.grad is False:
            continue
        for output, target in (loss.inputs[:2], loss.inputs[1::-1]):
            origin, values = output.origin(VIEWS), _without_views(target)
            limits = _RANGES.get(origin.name) if origin is not None else None
            if origin is None or limits is None:
                continue
            is_beyond = low < limits[0] - _MARGIN or high > limits[1] + _MARGIN
            if _is_standardised(values.node):
                what, scaled = "targets have mean 0 and deviation 1", values.node
            elif is_beyond and values.name == "batch" and any(each is values for each in output.ancestors(400)):
                what, scaled = f"targets are images that `Normalize` scales to {low:.2g} to {high:.2g}", scalings[0][0]
            else:
                continue
            yield Hit(
                message=f"The output of `{ast.unparse(origin.node)}` is between {limits[0]:g} and {limits[1]:g}, but "
                f"the {what}.",
                node=loss.node,
                related=((scaled, "scaled here"), (origin.node, "the last operation of the model")),
                fix=remove_activation_fix(source, origin, origin.name.rpartition(".")[2]),
            )


def _without_views(value: AbstractValue) -> AbstractValue:
    """Return the tensor of which another shape or some rows are read."""
    while value.sources and (isinstance(value.node, ast.Subscript) or _is_view(value)):
        value = value.sources[0]
    return value


def _is_view(value: AbstractValue) -> bool:
    method = last_name(value.node.func) if isinstance(value.node, ast.Call) else ""
    return value.name in VIEWS or (not value.name and f"torch.Tensor.{method}" in VIEWS)


def _is_standardised(node: ast.AST | None) -> bool:
    """Return True for ``(x - x.mean()) / x.std()``."""
    text = ast.unparse(node) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else ""
    return bool(re.fullmatch(r"\(\w+ - .*mean.*\) / .*std.*", text))


def _scalings(source: SourceFile) -> Iterator[tuple[ast.Call, float, float]]:
    """Yield the transforms ``ToTensor(), Normalize(mean, std)`` whose numbers are written out."""
    for call in source.all_calls:
        steps = source.parents.get(id(call)) if last_name(call.func) == "Normalize" else None
        if not isinstance(steps, ast.List | ast.Tuple) or "A." in dotted_name(call.func):
            continue
        before = {last_name(each.func) for each in steps.elts[: steps.elts.index(call)] if isinstance(each, ast.Call)}
        mean, spread = (_numbers(argument_node(call, name, at)) for at, name in enumerate(("mean", "std")))
        if "ToTensor" in before and mean and spread and 0 not in spread and steps.elts[-1] is call:
            lows = [-m / s for m, s in zip(mean, spread, strict=False)]
            highs = [(1 - m) / s for m, s in zip(mean, spread, strict=False)]
            yield call, min(lows), max(highs)


def _numbers(node: ast.expr | None) -> list[float]:
    """Return the numbers of a tuple or list, or a single one; [] if they are not written out."""
    values = [getattr(each, "value", None) for each in getattr(node, "elts", [node])]
    numbers = [float(each) for each in values if isinstance(each, int | float)]
    return numbers if len(numbers) == len(values) else []


RULE = Rule(required_words=("Normalize(|std(|std)", "oss(|_loss(", "igmoid|anh|eLU|elu("), find=find)
