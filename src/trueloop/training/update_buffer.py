"""Collects updates until it is worth telling anybody, so that the loop never waits for a reader.

On the CPU a loss is read at once; elsewhere the numbers of many updates are copied to the host together.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from trueloop.core.protocols import MicroBatch, UpdateRow
from trueloop.training.loop import UpdateResult
from trueloop.training.optimizers.foreach import to_double

_FLUSH_INTERVAL_S = 0.1  # as often as a person can read a changing number
_MAX_PENDING = 512  # rows; bounds the memory of pending batches


class BufferedUpdate(NamedTuple):
    """One update as it is journaled, with its batches where they may be needed again."""

    row: UpdateRow
    window: list[MicroBatch]
    """Empty where the update is known to have been finite."""
    counted: bool
    """False where the window's targets counted nothing, so that there was nothing to step."""


class UpdateBuffer:
    """Pending updates, resolved together.

    Args:
        flush_every: told after this many updates instead of by the clock, so that several processes do it together.
    """

    def __init__(self, flush_every: int | None = None) -> None:
        self._every = flush_every
        self._pending: list[tuple[UpdateResult, int, int]] = []
        self._told = perf_counter()

    def add(self, done: UpdateResult, *, update: int, epoch: int) -> bool:
        """Take one update; return True when it is time to `drain` them."""
        on_host = not isinstance(done.outcome.skipped, Tensor)
        urgent = on_host and bool(done.outcome.skipped)
        if on_host and not urgent and done.window:
            done = done._replace(window=[])  # finite: its batches will not be needed again
        self._pending.append((done, update, epoch))
        if self._every:
            return urgent or len(self._pending) >= self._every
        return urgent or len(self._pending) >= _MAX_PENDING or perf_counter() - self._told > _FLUSH_INTERVAL_S

    def drain(self) -> list[BufferedUpdate]:
        """Return what is pending, with every number on the host: one synchronisation for all of them."""
        pending, self._pending = self._pending, []
        self._told = perf_counter()
        numbers = _on_host(pending)
        return [_entry(*item, values) for item, values in zip(pending, numbers, strict=True)]


def _on_host(pending: list[tuple[UpdateResult, int, int]]) -> list[tuple[float, ...]]:
    """(loss, norm, skipped, divisor, examples) of each."""
    rows = [(done.loss, done.outcome.norm, done.outcome.skipped, done.divisor, done.examples) for done, _, _ in pending]
    flat = [value for row in rows for value in row]
    tensors = [value for value in flat if isinstance(value, Tensor)]
    read = iter(torch.stack([to_double(t) for t in tensors]).tolist() if tensors else ())
    values = [next(read) if isinstance(value, Tensor) else float(value) for value in flat]
    return [tuple(values[start : start + 5]) for start in range(0, len(values), 5)]


def _entry(done: UpdateResult, update: int, epoch: int, numbers: tuple[float, ...]) -> BufferedUpdate:
    loss, norm, skipped, divisor, examples = numbers
    rates = done.rates
    row = UpdateRow(
        update=update, epoch=epoch, loss=loss, grad_norm=norm, lr=rates[0], examples=int(examples),
        wait_s=done.wait_s, total_s=done.total_s, skipped=bool(skipped),
        rates=() if rates.count(rates[0]) == len(rates) else rates,
    )  # fmt: skip
    return BufferedUpdate(row, done.window if skipped else [], counted=divisor != 0)
