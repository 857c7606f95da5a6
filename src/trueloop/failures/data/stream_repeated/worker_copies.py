"""Compares the first batches of the workers of one loader."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

from trueloop.tracing.loader_pass import batch_columns

MAX_DEPTH: Final = 4  # levels of nested lists and dictionaries in a batch


class WorkerCopies:
    """Detects workers of a loader over an iterable dataset that all return the same first batch.

    Args:
        workers: number of workers; each of them returns one of the first batches.

    Cost: hashing ``workers`` + 1 batches.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._first_digest = 0
        self._batches = 0
        self.samples = 0
        self.finished = False
        """Whether no more batches are needed."""
        self.duplicated = False
        """Whether all first batches are equal, and a later one is not."""

    def add(self, batch: Any) -> None:
        """Add one batch."""
        digest = _digest(batch, MAX_DEPTH)
        if not self._batches:
            self._first_digest, self.samples = digest, max((len(part) for _, part in batch_columns(batch)), default=1)
        same = digest == self._first_digest
        self._batches += 1
        last = self._batches > self._workers
        self.duplicated = last and not same  # a dataset that always returns the same batch proves nothing
        self.finished = last or not same


def _digest(part: Any, depth: int) -> int:
    """Return a hash of a batch, which is equal for equal numbers and strings."""
    if isinstance(part, Tensor):
        if part.device.type != "cpu" or part.layout != torch.strided or part.is_quantized:
            return id(part)
        return hash(part.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(part, Mapping) and depth:
        pairs = cast("Mapping[Any, Any]", part).items()
        return hash(tuple((str(name), _digest(each, depth - 1)) for name, each in pairs))
    if isinstance(part, list | tuple) and depth:
        return hash(tuple(_digest(each, depth - 1) for each in cast("Sequence[Any]", part)))
    return hash(part) if isinstance(part, str | bytes | int | float | bool) else id(part)
