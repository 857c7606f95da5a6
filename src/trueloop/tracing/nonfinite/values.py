"""Finds tensors with non-finite values on the CPU, and summarises the values of a tensor in words."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the dense real CPU tensors in Python containers."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_complex() and value.device.type == "cpu":
            yield value
    elif isinstance(value, dict):
        for each in cast("dict[Any, Any]", value).values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[Any]", value):
            yield from tensors_in(each)


def has_nonfinite(tensor: Tensor) -> bool:
    """Return True if some value is NaN or infinite."""
    return tensor.dtype in FLOATS and not bool(tensor.isfinite().all())


def has_nan_or_positive_inf(tensor: Tensor) -> bool:
    """Return True if some value is NaN or +inf; -inf alone is a mask."""
    return tensor.dtype in FLOATS and bool((tensor.isnan() | (tensor == torch.inf)).any())


def describe_values(tensor: Tensor) -> str:
    """Return a summary of a tensor's values: "min -3.1, max 0, 12 of 384 zero"."""
    values = tensor.detach().flatten()
    finite = values[values.isfinite()]
    parts = [f"min {finite.min().item():.3g}, max {finite.max().item():.3g}"] if len(finite) else []
    for count, what in ((int((values == 0).sum()), "zero"), (len(values) - len(finite), "not finite")):
        parts += [f"{count} of {len(values)} {what}"] if count else []
    return ", ".join(parts) or "no value"
