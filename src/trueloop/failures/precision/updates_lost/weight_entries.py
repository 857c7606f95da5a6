"""Compares some entries of the weights in half precision before and after updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from trueloop.tracing.events import Ref
from trueloop.tracing.row_digests import has_storage

MAX_WEIGHTS: Final = 8
MAX_ENTRIES: Final = 256  # of one weight
HALF: Final = (torch.bfloat16, torch.float16)


@dataclass(slots=True)
class WeightEntries:
    """Some entries of a weight, and what happened to them."""

    size: float
    """Number of entries of the weight for each one that is compared."""
    start: Tensor
    latest: Tensor
    has_changed: Tensor
    has_gradient: Tensor
    """Whether the gradient was nonzero in every update so far."""
    gradient: Tensor
    """Sum of the absolute gradients of all updates."""
    lost: Tensor
    """Sum of the absolute gradients of entries that the update did not change."""

    def add(self, parameter: Tensor) -> None:
        """Add the state after one update."""
        now = _entries(parameter)
        self.has_changed |= now != self.start
        self.has_gradient &= _entries(parameter.grad) != 0 if parameter.grad is not None else False
        if parameter.grad is not None:
            gradient = _entries(parameter.grad).float().abs()
            self.gradient += gradient.sum()
            self.lost += (gradient * (now == self.latest)).sum()
        self.latest = now.clone()


def first_weights(parameters: Mapping[Ref, Any]) -> dict[Ref, WeightEntries]:
    """Return the first weights in half precision that have a gradient, with the entries to compare."""
    found: dict[Ref, WeightEntries] = {}
    for ref, parameter in parameters.items():
        is_half = parameter.dtype in HALF and parameter.grad is not None and parameter.grad.layout is torch.strided
        if is_half and has_storage(parameter) and len(found) < MAX_WEIGHTS:
            start = _entries(parameter).clone()
            zero = torch.zeros((), device=start.device)
            unchanged = torch.zeros_like(start, dtype=torch.bool)
            has_gradient = _entries(parameter.grad) != 0
            found[ref] = WeightEntries(
                parameter.numel() / max(1, len(start)), start, start, unchanged, has_gradient, zero, zero.clone()
            )
    return found


def _entries(tensor: Any) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: -(-len(flat) // MAX_ENTRIES) | 1]  # odd, not a divisor of the number of columns
