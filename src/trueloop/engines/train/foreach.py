"""torch's operations over many tensors in one call. torch.optim is built on them, but they have no public names."""

# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def precise(number: Tensor) -> Tensor:
    """Return it as float64, or as float32 on MPS, which has no float64."""
    return number.float() if number.device.type == "mps" else number.double()


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the joint L2 norm, 0-d; one read of each tensor, no host synchronisation."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))


def total_norm_on_host(tensors: Sequence[Tensor]) -> float:
    """Return the joint L2 norm as a number; on the CPU no further tensor is made for it."""
    if not tensors[0].is_cpu:
        return float(total_norm(tensors))
    return math.hypot(*[norm.item() for norm in torch._foreach_norm(list(tensors))])


def divide(tensors: Sequence[Tensor], by: float) -> None:
    """Divide every tensor in place."""
    torch._foreach_div_(list(tensors), by)


def copy(into: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy each tensor of ``source`` into its partner."""
    torch._foreach_copy_(list(into), list(source))
