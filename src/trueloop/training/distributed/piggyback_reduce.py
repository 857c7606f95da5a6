"""All-reduce a few numbers in DDP's gradient bucket, without a message of their own.

On a CPU a message of five numbers takes as long as one of five thousand: both wait for the other process to wake up. So
the sums and counts of a window are sent as the gradient of one more parameter, which no optimizer trains, in a bucket
that DDP reduces anyway.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

MAX_NUMBERS: Final = 16
"""Numbers in one message; a longer list is reduced separately."""
_DIGIT: Final = 1024.0
_PARTS: Final = 3  # of each number: a multiple of _DIGIT, the rest in ones, and the rest below 1
_EXACT: Final = (torch.float32, torch.float64)


class PiggybackReduce:
    """A parameter whose gradient is a list of numbers, which DDP averages over the processes.

    Integers are summed exactly, also in float32 and where DDP's 1 / processes is rounded: up to 2^34 over the number
    of processes, of which there may be 4,000. Other numbers keep at least float32's precision.

    Args:
        dtype: of the gradients in the same bucket: float32 or float64.
        processes: how many numbers are summed.
    """

    def __init__(self, dtype: torch.dtype, processes: int) -> None:
        self.parameter = nn.Parameter(torch.zeros(MAX_NUMBERS * _PARTS, dtype=dtype))
        self._processes = float(processes)

    def encode(self, numbers: Sequence[float]) -> Tensor:
        """Return the gradient that encodes these numbers, at most `MAX_NUMBERS`; drops the previous ones."""
        self.parameter.grad = None
        factor = self._processes  # cancels DDP's division; multiplying here keeps integers exact
        parts = [part * factor for number in numbers for part in _to_digits(number)]
        return torch.tensor(parts + [0.0] * (MAX_NUMBERS * _PARTS - len(parts)), dtype=self.parameter.dtype)

    def decode(self, count: int) -> list[float]:
        """Return the sums of the first ``count`` numbers over all processes, after the gradients are reduced."""
        if self.parameter.grad is None:
            raise RuntimeError("the numbers are read before the backward pass that reduces them")
        parts = self.parameter.grad.tolist()
        self.parameter.grad = None
        return [_from_digits(*parts[start : start + _PARTS]) for start in range(0, count * _PARTS, _PARTS)]


def piggyback_dtype(parameters: Sequence[Tensor]) -> torch.dtype | None:
    """Return a dtype to share a bucket with most of the gradients; None where no dtype is precise enough."""
    elements = Counter[torch.dtype]()
    for parameter in parameters:
        elements[parameter.dtype] += parameter.numel()
    dtype = max(elements, key=lambda each: elements[each], default=None)
    return dtype if dtype in _EXACT and all(parameter.is_cpu for parameter in parameters) else None


def _to_digits(number: float) -> tuple[float, float, float]:
    if not math.isfinite(number):
        return 0.0, 0.0, number
    low = math.fmod(number, _DIGIT)  # has the number's sign and is exact, unlike the remainder of a division
    rest = math.fmod(low, 1.0)
    return (number - low) / _DIGIT, low - rest, rest


def _from_digits(high: float, low: float, rest: float) -> float:
    if not math.isfinite(high + low):
        return high + low
    return round(high) * _DIGIT + round(low) + rest
