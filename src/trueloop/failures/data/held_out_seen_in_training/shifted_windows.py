"""Recognises windows of one series: samples that contain the same values as other samples, shifted in time."""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from trueloop.tracing.row_digests import has_storage, mix

MIN_STEPS: Final = 5  # of a window
LONG_WINDOW, LONG_RUN, SHORT_RUN = 24, 8, 4  # steps in a row that are recognised; longer ones in longer windows
RUNS_PER_WINDOW: Final = 32  # about so many are kept, chosen by their values, so that they are the same in each window
MIN_DISTINCT_SHARE: Final = 0.5  # of a window's values; fewer in one-hot vectors, tokens and levels
MAX_VALUES: Final = 1 << 18  # numbers in a batch
MAX_ROWS: Final = 512  # held-out windows that are compared
MAX_RUNS: Final = 1 << 20  # of the training samples
ROWS_UNTIL_OVERLAP: Final = 1024  # training samples among which windows of one series overlap
MAX_REPEATED_SHARE: Final = 0.1  # of runs at the same step of two training samples, as in periodic data
MIN_COVERED: Final = 0.8  # of the runs of a window; one at the border of a later test period has new steps


class Runs(NamedTuple):
    """Runs of successive steps in windows; each field has shape (R,)."""

    digests: Tensor
    starts: Tensor
    """Step at which the run starts in its window."""
    windows: Tensor
    """Hash of the window."""


def runs_in(batch: Tensor, rows: Tensor) -> dict[int, Runs]:
    """Return the runs of steps in the samples of a batch, for each dimension that may be time.

    Args:
        batch: (B, T), (B, T, F) or (B, F, T), maybe with dimensions of size 1; on the CPU.
        rows: (B,), hashes of the samples.
    """
    if batch.ndim < 2 or not has_storage(batch) or not batch.is_floating_point():
        return {}
    count = min(len(rows), MAX_VALUES // max(1, batch[0].numel()))
    table = batch.detach()[:count].reshape(count, *(size for size in batch.shape[1:] if size > 1))
    if not count or not 2 <= table.ndim <= 3 or not _is_continuous(table):
        return {}
    options = {1: table} if table.ndim == 2 else {1: table, 2: table.transpose(1, 2)}
    options = {axis: part.reshape(*part.shape[:2], -1) for axis, part in options.items()}
    return {axis: _runs(part, rows[:count]) for axis, part in options.items() if part.shape[1] >= MIN_STEPS}


def _is_continuous(table: Tensor) -> bool:
    first = table[:4].flatten(1)[:, :4096]
    return sum(len(row.unique()) for row in first) >= MIN_DISTINCT_SHARE * first.numel()


def _runs(table: Tensor, rows: Tensor) -> Runs:
    steps = mix(mix(table.float().contiguous().view(torch.int32).long()).cumsum(2)).sum(2)  # (B, T)
    length = LONG_RUN if table.shape[1] >= LONG_WINDOW else SHORT_RUN
    parts = steps.unfold(1, length, 1)
    digests = mix(mix(parts).cumsum(2)).sum(2)
    varies = (parts[..., 1:] != parts[..., :-1]).all(2)
    chosen = varies & (digests % max(1, table.shape[1] // RUNS_PER_WINDOW) == 0)
    window, start = chosen.nonzero(as_tuple=True)
    return Runs(digests[chosen], start, rows[window])


class TrainingWindows:
    """The runs of steps in the training samples of one model, along one dimension."""

    def __init__(self) -> None:
        self._parts: list[Runs] = []
        self._count = self._rows = 0
        self.is_series = True
        """Whether training samples may be overlapping windows."""

    def add(self, runs: Runs, rows: int) -> None:
        """Add the runs of new training samples."""
        if self.is_series and self._count < MAX_RUNS:
            self._parts.append(runs)
            self._count += len(runs.digests)
            before, self._rows = self._rows, self._rows + rows
            if before < ROWS_UNTIL_OVERLAP <= self._rows:
                self.is_series = bool(self._found_shifted(self._joined()).any())
                self._parts = self._parts if self.is_series else []

    def covered(self, held_out: list[Runs]) -> int:
        """Return the number of windows that consist of steps of training samples, at other positions in them."""
        joined = self._joined()
        if not len(joined.digests):
            return 0
        repeated = 1 - len(_at(joined).unique()) / len(joined.digests)
        if repeated > MAX_REPEATED_SHARE:
            return 0
        runs = Runs(*map(torch.cat, zip(*held_out, strict=True)))
        windows, index, counts = runs.windows.unique(return_inverse=True, return_counts=True)
        found = torch.zeros(len(windows)).index_add(0, index, self._found_shifted(runs).float())
        return int((found[:MAX_ROWS] >= MIN_COVERED * counts[:MAX_ROWS]).sum())

    def _joined(self) -> Runs:
        """Return all runs, each of a sample once."""
        if not self._parts:
            return Runs(*(torch.zeros(0, dtype=torch.long) for _ in Runs._fields))
        joined = Runs(*map(torch.cat, zip(*self._parts, strict=True)))
        order = mix(_at(joined) + mix(joined.windows)).argsort()
        ordered = mix(_at(joined) + mix(joined.windows))[order]
        first = torch.cat([torch.ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
        joined = Runs(*(field[order[first]] for field in joined))
        self._parts = [joined]
        return joined

    def _found_shifted(self, runs: Runs) -> Tensor:
        """Return for each run whether a training sample has it at another step."""
        joined = self._joined()
        return _count(joined.digests, runs.digests) > _count(_at(joined), _at(runs))


def _at(runs: Runs) -> Tensor:
    return mix(runs.digests + mix(runs.starts + 1))


def _count(table: Tensor, values: Tensor) -> Tensor:
    ordered = table.sort().values
    return torch.searchsorted(ordered, values, right=True) - torch.searchsorted(ordered, values)
