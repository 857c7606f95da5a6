"""Finds the operation that made a loss non-finite, in the loss's graph before the backward pass frees it.

The search goes back from the loss through operations that propagate every NaN and infinity. It reads the inputs of an
operation from its saved tensors. It runs no code of the program, and stores no tensor.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.tracing.losses import operation_name
from trueloop.tracing.nonfinite.values import FLOATS, describe_values, has_nonfinite
from trueloop.tracing.saved_tensors import saved_tensor

MAX_NODES: Final = 200  # searched nodes in the arithmetic of a loss
PROPAGATING: Final = frozenset((
    "Add", "Sub", "Rsub", "Mul", "Neg", "Mean", "Sum", "Abs", "Expand", "View", "UnsafeView", "ReshapeAlias",
    "Unsqueeze", "Squeeze", "Transpose", "T", "Permute", "Clone", "ToCopy", "Stack", "Cat",
))  # fmt: skip
"""Operations whose result is non-finite whenever some input is."""


class LossOrigin(NamedTuple):
    """An operation with finite inputs and a non-finite result."""

    operation: str
    inputs: str
    """Summary of the operation's inputs, in words."""


def find_loss_origin(root: Tensor) -> LossOrigin | None:
    """Return the operation that made a loss non-finite, if it is certain; reads values on the CPU only.

    Args:
        root: the non-finite root of the backward pass that is about to start.
    """
    queue: list[Any] = [root.grad_fn] if root.grad_fn is not None else []
    known = set(queue)
    for node in queue:
        name = operation_name(node.name())
        check = _CHECKS.get(name)
        origin = None if check is None else check(node)
        if origin is not None:
            return origin
        edges = (
            node.next_functions if name in PROPAGATING else node.next_functions[:1] if _propagates(node, name) else ()
        )
        for below, _ in edges:
            if below is not None and below not in known and len(queue) < MAX_NODES:
                known.add(below)
                queue.append(below)
    return None


def _propagates(node: Any, name: str) -> bool:
    """Return True if a non-finite first input makes the operation's result non-finite."""
    return name in _CHECKS and (name != "Pow" or getattr(node, "_saved_exponent", 0) > 0)


def _elementwise(operation: str, function: Callable[[Tensor], Tensor]) -> Callable[[Any], LossOrigin | None]:
    """Return a check that repeats an operation on its saved input."""

    def check(node: Any) -> LossOrigin | None:
        base = _floats(saved_tensor(node, "self"))
        if base is None or has_nonfinite(base) or not has_nonfinite(function(base)):
            return None
        return LossOrigin(operation, describe_values(base))

    return check


def _check_division(node: Any) -> LossOrigin | None:
    """Return a division by a tensor with zeros; a Python number as divisor is not saved."""
    divisor = _floats(saved_tensor(node, "other"))
    if divisor is None or has_nonfinite(divisor) or not bool((divisor == 0).any()):
        return None
    return LossOrigin("div", f"a divisor of {describe_values(divisor)}")


def _check_power(node: Any) -> LossOrigin | None:
    base, exponent = _floats(saved_tensor(node, "self")), getattr(node, "_saved_exponent", None)
    if base is None or not isinstance(exponent, int | float) or has_nonfinite(base):
        return None
    return LossOrigin("pow", describe_values(base)) if has_nonfinite(base.pow(exponent)) else None


def _floats(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or type(tensor) is not Tensor or tensor.device.type != "cpu" or tensor.dtype not in FLOATS:
        return None
    return tensor.detach()


_CHECKS: Final[dict[str, Callable[[Any], LossOrigin | None]]] = {
    "Log": _elementwise("log", torch.log),
    "Log2": _elementwise("log2", torch.log2),
    "Log10": _elementwise("log10", torch.log10),
    "Log1P": _elementwise("log1p", torch.log1p),
    "Div": _check_division,
    "Pow": _check_power,
}
