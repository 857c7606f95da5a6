"""All-reduce a few numbers in DDP's gradient bucket, without a message of their own.

On a CPU, a message of five numbers takes as long as one of five thousand: most of the time is waiting for the other
process to wake up. So the sums and counts of a window are sent as the gradient of an additional parameter, which no
optimizer trains, in a bucket that DDP reduces in any case.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

MAX_NUMBERS: Final = 16
"""Largest number of numbers in one message; longer lists are reduced separately."""
_BASE: Final = 1024.0
_PARTS: Final = 3  # number of parts of a number: a multiple of _BASE, the remaining integer, and the fraction
_EXACT_DTYPES: Final = (torch.float32, torch.float64)


class PiggybackReduce:
    """A parameter whose gradient is a list of numbers, which DDP averages over the processes.

    Integers are summed exactly, even in float32 and if DDP's 1 / processes is rounded: up to 2^34 / processes, for up
    to 4,000 processes. Other numbers are summed with at least the precision of float32.

    Args:
        dtype: type of the gradients in the same bucket: float32 or float64.
        processes: number of processes.
    """

    def __init__(self, dtype: torch.dtype, processes: int) -> None:
        self.parameter = nn.Parameter(torch.zeros(MAX_NUMBERS * _PARTS, dtype=dtype))
        self._processes = float(processes)

    def encode(self, numbers: Sequence[float]) -> Tensor:
        """Return the gradient that encodes these numbers, at most `MAX_NUMBERS`; clear the previous gradient."""
        self.parameter.grad = None
        factor = self._processes  # cancels DDP's division; multiplying first keeps integers exact
        parts = [part * factor for number in numbers for part in _split_number(number)]
        return torch.tensor(parts + [0.0] * (MAX_NUMBERS * _PARTS - len(parts)), dtype=self.parameter.dtype)

    def decode(self, count: int) -> list[float]:
        """Return the sums of the first ``count`` numbers over all processes, after the gradients are reduced."""
        if self.parameter.grad is None:
            raise RuntimeError("the numbers are read before the backward pass that reduces them")
        parts = self.parameter.grad.tolist()
        self.parameter.grad = None
        return [_join_number(*parts[start : start + _PARTS]) for start in range(0, count * _PARTS, _PARTS)]


def piggyback_dtype(parameters: Sequence[Tensor]) -> torch.dtype | None:
    """Return the dtype of most gradients, whose bucket the numbers can use; None if it is not precise enough."""
    elements = Counter[torch.dtype]()
    for parameter in parameters:
        elements[parameter.dtype] += parameter.numel()
    dtype = max(elements, key=lambda each: elements[each], default=None)
    return dtype if dtype in _EXACT_DTYPES and all(parameter.is_cpu for parameter in parameters) else None


def _split_number(number: float) -> tuple[float, float, float]:
    if not math.isfinite(number):
        return 0.0, 0.0, number
    low = math.fmod(number, _BASE)  # has the sign of the number and is exact, unlike number % _BASE
    fraction = math.fmod(low, 1.0)
    return (number - low) / _BASE, low - fraction, fraction


def _join_number(high: float, low: float, fraction: float) -> float:
    if not math.isfinite(high + low):
        return high + low
    return round(high) * _BASE + round(low) + fraction
