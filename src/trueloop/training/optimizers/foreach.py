"""Call torch's multi-tensor operations, which torch.optim uses and which have no public names."""

# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def to_double(number: Tensor) -> Tensor:
    """Return a number as float64, or as float32 on MPS, which has no float64."""
    return number.float() if number.device.type == "mps" else number.double()


def is_half(number: Tensor) -> bool:
    """Return True for types that cannot represent counts: in bfloat16, 256 + 1 is 256, and float16 ends at 65504."""
    return number.element_size() < 4


def norm(tensor: Tensor) -> Tensor:
    """Return the L2 norm, 0-d; for a 16-bit tensor, it is computed in float32."""
    return torch.linalg.vector_norm(tensor, dtype=torch.float32 if is_half(tensor) else None)


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm over all tensors, 0-d, without waiting for the GPU; reads each tensor once."""
    return torch.linalg.vector_norm(torch.stack(_norms(tensors)))


def total_norm_as_float(tensors: Sequence[Tensor]) -> float:
    """Return the L2 norm over all tensors as a float."""
    if not tensors[0].is_cpu:
        return float(total_norm(tensors))
    return math.hypot(*[each.item() for each in _norms(tensors)])


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    return list(map(norm, tensors) if any(map(is_half, tensors)) else torch._foreach_norm(list(tensors)))


def divide(tensors: Sequence[Tensor], divisor: float) -> None:
    """Divide every tensor in place."""
    torch._foreach_div_(list(tensors), divisor)


def copy_tensors(targets: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy each tensor of ``source`` into the target at the same position."""
    torch._foreach_copy_(list(targets), list(source))
