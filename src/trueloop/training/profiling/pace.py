"""Measure the throughput of a run over some windows of its epochs."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any, Final, cast

import torch

from trueloop.core.errors import InvalidData
from trueloop.core.protocols import BatchSource, MicroBatch
from trueloop.training.compiled.compiled_loop import train_epoch
from trueloop.training.loop import Assembly, UpdateResult
from trueloop.training.memory.device_memory import peak_memory_mib

WARMUP_UPDATES: Final = 3  # not measured: kernels are chosen, memory is allocated, workers start


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Throughput of some updates."""

    updates: int
    update_s: float
    """Number of seconds per update, including waiting for data."""
    examples_per_s: float
    waiting: float
    """Share of the time spent waiting for data."""
    peak_memory_mib: float | None


class WindowRunner:
    """Trains on the windows of one epoch after another, without end; the weights change."""

    def __init__(self, assembly: Assembly, source: BatchSource) -> None:
        self.assembly, self._source = assembly, source
        self._epochs = count()
        self._update = 0

    def train(self) -> Iterator[UpdateResult]:
        """Yield after every update.

        Raises:
            InvalidData: the training data contain no window.
        """
        while True:
            updates_before = self._update
            micros = cast("Any", self._source.epoch(next(self._epochs)))
            for result in train_epoch(self.assembly, self.read_batches(micros), update=self._update):
                self._update += 1
                yield result
            if self._update == updates_before:
                raise InvalidData("There is no window to train on.", fix="Check the dataset's length and drop_last.")

    def read_batches(self, micros: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the micro-batches of an epoch; a subclass may record the reading."""
        return micros

    def synchronize(self) -> None:
        """Wait until the GPU, if there is one, has finished its queued work."""
        if self.assembly.device.type == "cuda":
            torch.cuda.synchronize(self.assembly.device)


def measure_throughput(assembly: Assembly, source: BatchSource, *, seconds: float) -> Throughput:
    """Train for a few seconds and measure the throughput.

    Args:
        assembly: an assembled run with a schedule without an end, or a long one; its weights change.
        source: training data.
        seconds: number of seconds to measure, after `WARMUP_UPDATES` updates; at least one update is measured.

    Raises:
        InvalidData: the training data contain no window.
    """
    windows = WindowRunner(assembly, source)
    updates = examples = 0
    waited_s = 0.0
    with closing(cast("Any", windows.train())) as steps:
        for _ in range(WARMUP_UPDATES):
            next(steps)
        windows.synchronize()
        started = perf_counter()
        while not updates or perf_counter() - started < seconds:
            result: UpdateResult = next(steps)
            updates, examples, waited_s = updates + 1, examples + int(result.examples), waited_s + result.wait_s
        windows.synchronize()
        elapsed_s = perf_counter() - started
    return Throughput(
        updates=updates,
        update_s=elapsed_s / updates,
        examples_per_s=examples / elapsed_s,
        waiting=min(1.0, waited_s / elapsed_s),
        peak_memory_mib=peak_memory_mib(assembly.device),
    )
