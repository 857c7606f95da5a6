"""Buffer updates before they are reported, so that the loop rarely waits for the GPU.

On the CPU the numbers are read immediately; those on a GPU are copied to the CPU for many updates together.
"""

from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from trueloop.core.protocols import MicroBatch, UpdateRow
from trueloop.training.loop import UpdateResult
from trueloop.training.optimizers.foreach import to_double

_DRAIN_INTERVAL_S = 0.1  # a human cannot read numbers that change more often
_MAX_PENDING = 512  # largest number of pending updates; limits the memory of their batches


class BufferedUpdate(NamedTuple):
    """One update in the form of the journal, with its batches if it was skipped."""

    row: UpdateRow
    window: list[MicroBatch]
    """The batches of a skipped update, which may be run again to find the cause; empty for other updates."""
    has_targets: bool
    """False if every target of the window is ignored or has weight 0, so that the divisor of its loss is 0."""


class UpdateBuffer:
    """Stores updates until their numbers are read together.

    Args:
        drain_every: number of updates after which to drain the buffer, so that several processes do it together;
            None = drain it every 0.1 s.
    """

    def __init__(self, drain_every: int | None = None) -> None:
        self._drain_every = drain_every
        self._pending: list[tuple[UpdateResult, int, int]] = []
        self._drained_at = perf_counter()

    def add(self, result: UpdateResult, *, update: int, epoch: int) -> bool:
        """Add one update; return True if the buffer should be drained now."""
        skipped = result.outcome.skipped
        was_skipped = None if isinstance(skipped, Tensor) else bool(skipped)  # None: the GPU has not been asked yet
        if was_skipped is False and result.window:
            result = result._replace(window=[])  # only the batches of a skipped update are run again
        self._pending.append((result, update, epoch))
        if was_skipped or len(self._pending) >= (self._drain_every or _MAX_PENDING):
            return True
        return not self._drain_every and perf_counter() - self._drained_at > _DRAIN_INTERVAL_S

    def drain(self) -> list[BufferedUpdate]:
        """Return the pending updates with every number on the CPU; waits for the GPU once for all of them."""
        pending, self._pending = self._pending, []
        self._drained_at = perf_counter()
        numbers = _read_numbers(pending)
        return [_to_buffered_update(*item, values) for item, values in zip(pending, numbers, strict=True)]


def _read_numbers(pending: list[tuple[UpdateResult, int, int]]) -> list[tuple[float, ...]]:
    """Return (loss, norm, skipped, divisor, examples) of each update."""
    flat: list[Tensor | float] = []
    for result, _, _ in pending:
        flat += (result.loss, result.outcome.norm, result.outcome.skipped, result.divisor, result.examples)
    tensors = [value for value in flat if isinstance(value, Tensor)]
    from_tensors = iter(torch.stack([to_double(t) for t in tensors]).tolist() if tensors else ())
    values = [next(from_tensors) if isinstance(value, Tensor) else float(value) for value in flat]
    return [tuple(values[start : start + 5]) for start in range(0, len(values), 5)]


def _to_buffered_update(result: UpdateResult, update: int, epoch: int, numbers: tuple[float, ...]) -> BufferedUpdate:
    loss, norm, skipped, divisor, examples = numbers
    rates = result.rates
    row = UpdateRow(
        update=update,
        epoch=epoch,
        loss=loss,
        grad_norm=norm,
        lr=rates[0],
        examples=int(examples),
        wait_s=result.wait_s,
        total_s=result.total_s,
        skipped=bool(skipped),
        rates=() if rates.count(rates[0]) == len(rates) else rates,
    )
    return BufferedUpdate(row, result.window if skipped else [], has_targets=divisor != 0)
