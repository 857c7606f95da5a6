"""Which operation made a loss that is not finite, read from its graph before the backward frees it.

From the loss back, only through operations that let every NaN and infinity through. What an operation was given is
among what it has saved for the backward. Nothing of the program is run, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.tracing.losses import operation_name
from trueloop.tracing.nonfinite.values import FLOATS, describe_values, has_nonfinite
from trueloop.tracing.saved_tensors import saved_tensor

MAX_NODES: Final = 200  # of the arithmetic of a loss
PROPAGATING: Final = frozenset((
    "Add", "Sub", "Rsub", "Mul", "Neg", "Mean", "Sum", "Abs", "Expand", "View", "UnsafeView", "ReshapeAlias",
    "Unsqueeze", "Squeeze", "Transpose", "T", "Permute", "Clone", "ToCopy", "Stack", "Cat",
))  # fmt: skip
"""Whatever is not finite in an input of these is so in the result."""


class LossOrigin(NamedTuple):
    """An operation whose result is not finite though what it was given is."""

    operation: str
    inputs: str
    """What it was given, in words."""


def find_loss_origin(root: Tensor) -> LossOrigin | None:
    """Return the operation, where it is certain; reads values on the CPU, only for a loss that is not finite.

    Args:
        root: of the backward that is about to begin.
    """
    queue: list[Any] = [root.grad_fn] if root.grad_fn is not None else []
    known = set(queue)
    for node in queue:
        name = operation_name(node.name())
        made = _MADE.get(name)
        origin = None if made is None else made(node)
        if origin is not None:
            return origin
        below_it = (
            node.next_functions if name in PROPAGATING else node.next_functions[:1] if _passes(node, name) else ()
        )
        for below, _ in below_it:
            if below is not None and below not in known and len(queue) < MAX_NODES:
                known.add(below)
                queue.append(below)
    return None


def _passes(node: Any, name: str) -> bool:
    """True where what is not finite in the first input is so in the result."""
    return name in _MADE and (name != "Pow" or getattr(node, "_saved_exponent", 0) > 0)


def _elementwise(operation: str, function: Callable[[Tensor], Tensor]) -> Callable[[Any], LossOrigin | None]:
    """Run an operation once more on what it has saved."""

    def made(node: Any) -> LossOrigin | None:
        given = _floats(saved_tensor(node, "self"))
        if given is None or has_nonfinite(given) or not has_nonfinite(function(given)):
            return None
        return LossOrigin(operation, describe_values(given))

    return made


def _divided(node: Any) -> LossOrigin | None:
    """A division by a tensor with zeros in it; by a number of Python's none is saved that could be told."""
    divisor = _floats(saved_tensor(node, "other"))
    if divisor is None or has_nonfinite(divisor) or not bool((divisor == 0).any()):
        return None
    return LossOrigin("div", f"a divisor of {describe_values(divisor)}")


def _power(node: Any) -> LossOrigin | None:
    given, exponent = _floats(saved_tensor(node, "self")), getattr(node, "_saved_exponent", None)
    if given is None or not isinstance(exponent, int | float) or has_nonfinite(given):
        return None
    return LossOrigin("pow", describe_values(given)) if has_nonfinite(given.pow(exponent)) else None


def _floats(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or type(tensor) is not Tensor or tensor.device.type != "cpu" or tensor.dtype not in FLOATS:
        return None
    return tensor.detach()


_MADE: Final[dict[str, Callable[[Any], LossOrigin | None]]] = {
    "Log": _elementwise("log", torch.log),
    "Log2": _elementwise("log2", torch.log2),
    "Log10": _elementwise("log10", torch.log10),
    "Log1P": _elementwise("log1p", torch.log1p),
    "Div": _divided,
    "Pow": _power,
}
