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

_FLUSH_INTERVAL_S = 0.1  # a human cannot read numbers that change more often
_MAX_PENDING = 512  # largest number of pending updates; limits the memory of their batches


class BufferedUpdate(NamedTuple):
    """One update in the form of the journal, with its batches if they may be needed again."""

    row: UpdateRow
    window: list[MicroBatch]
    """The update's batches; empty if the update was not skipped."""
    counted: bool
    """False if the count of the window is 0, so that there was nothing to apply."""


class UpdateBuffer:
    """Stores updates until their numbers are read together.

    Args:
        flush_every: number of updates after which to flush, so that several processes do it together; None = flush
            after some time.
    """

    def __init__(self, flush_every: int | None = None) -> None:
        self._flush_every = flush_every
        self._pending: list[tuple[UpdateResult, int, int]] = []
        self._flushed_at = perf_counter()

    def add(self, result: UpdateResult, *, update: int, epoch: int) -> bool:
        """Add one update; return True if the buffer should be drained now."""
        on_host = not isinstance(result.outcome.skipped, Tensor)
        urgent = on_host and bool(result.outcome.skipped)
        if on_host and not urgent and result.window:
            result = result._replace(window=[])  # the batches of a finite update are not needed again
        self._pending.append((result, update, epoch))
        if self._flush_every:
            return urgent or len(self._pending) >= self._flush_every
        return urgent or len(self._pending) >= _MAX_PENDING or perf_counter() - self._flushed_at > _FLUSH_INTERVAL_S

    def drain(self) -> list[BufferedUpdate]:
        """Return the pending updates with every number on the CPU; waits for the GPU once for all of them."""
        pending, self._pending = self._pending, []
        self._flushed_at = perf_counter()
        numbers = _on_host(pending)
        return [_to_buffered_update(*item, values) for item, values in zip(pending, numbers, strict=True)]


def _on_host(pending: list[tuple[UpdateResult, int, int]]) -> list[tuple[float, ...]]:
    """Return (loss, norm, skipped, divisor, examples) of each update."""
    results = [result for result, _, _ in pending]
    rows = [(each.loss, each.outcome.norm, each.outcome.skipped, each.divisor, each.examples) for each in results]
    flat = [value for row in rows for value in row]
    tensors = [value for value in flat if isinstance(value, Tensor)]
    read = iter(torch.stack([to_double(t) for t in tensors]).tolist() if tensors else ())
    values = [next(read) if isinstance(value, Tensor) else float(value) for value in flat]
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
    return BufferedUpdate(row, result.window if skipped else [], counted=divisor != 0)
