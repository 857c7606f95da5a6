"""Samplers for a plain ``torch.utils.data.DataLoader``, and the split of an epoch into windows and micro-batches.

Symbols: N positions in the epoch, E effective batch, M micro-batch per process, P processes. All ranks share one global
order, and each rank reads every P-th position; no sample is repeated to give all ranks the same number of samples.
"""

# ruff: noqa: N806, N815 - shapes are part of the name: B indices of one micro-batch

from collections.abc import Iterator, Sized
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Sampler

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.order import Order, OrderChoice, choose_order

BLOCK_SIZE = 2**16  # number of positions to order at a time: takes 1 ms, of which 0.1 to 0.5 ms are a fixed cost


class OrderSampler(Sampler[int]):
    """Yields the dataset indices of one rank, in sequential, random or weighted order.

    Args:
        source: the dataset, or its size.
        order: "random", "sequential", one weight per sample (see `class_weights`), or an Order.
        seed: seed of the order.
        processes: number of ranks that share the order.
        rank: rank of this process, from 0.
        drop_last: drop the last size % processes positions, so that all ranks get the same number; otherwise the first
            ranks may get one sample more.
    """

    def __init__(
        self,
        source: Sized | int,
        *,
        order: OrderChoice = "random",
        seed: int = 0,
        processes: int = 1,
        rank: int = 0,
        drop_last: bool = False,
    ) -> None:
        check_rank(rank, processes)
        self.order: Order = choose_order(order, dataset_size(source), seed)
        self.processes, self.rank = processes, rank
        self.stop = self.order.size - (self.order.size % processes if drop_last else 0)
        self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Select an epoch, and skip the first ``start`` positions of the global order."""
        if not 0 <= start <= self.stop:
            raise InvalidData(f"The epoch has {self.stop} positions; {start} cannot be skipped.")
        self.order, self.start = self.order.for_epoch(epoch), start

    def __iter__(self) -> Iterator[int]:
        first, step = self.start + (self.rank - self.start) % self.processes, BLOCK_SIZE * self.processes
        for start in range(first, self.stop, step):
            positions = torch.arange(start, min(start + step, self.stop), self.processes)
            yield from self.order.at(positions).tolist()

    def __len__(self) -> int:
        return _rank_share(self.stop, self.rank, self.processes) - _rank_share(self.start, self.rank, self.processes)


class MicroBatchIndices(NamedTuple):
    """Dataset indices of one micro-batch on this rank."""

    indices_B: Tensor
    """Dataset indices, int64; empty if the micro-batch has no index for this rank."""
    closes_window: bool
    """True for the last micro-batch of its window."""
    padding_1: Tensor
    """If ``indices_B`` is empty, the micro-batch's first index (rank 0's), else empty."""


@dataclass(eq=False, repr=False)
class WindowSampler(Sampler[list[int]]):
    """Splits the global order into windows of ``effective_batch``, and these into micro-batches.

    Window w has the positions [w * E, (w + 1) * E), up to N. A micro-batch has the next M * P positions of its window,
    of which a rank reads [rank::P]; if E is not a multiple of M * P, the last micro-batch of each window is smaller. So
    a window has the same samples for any M and P.
    """

    source: Sized | int
    """The dataset, or its size."""
    _: KW_ONLY
    effective_batch: int
    """E: number of examples per update, over all micro-batches and processes."""
    micro_batch: int | None = None
    """M: number of examples per micro-batch and process; None = each window is one micro-batch."""
    order: OrderChoice = "random"
    """Order, as for `OrderSampler`."""
    seed: int = 0
    """Seed of the order."""
    processes: int = 1
    """P: number of training processes that share each window."""
    rank: int = 0
    """Rank of this process, from 0."""
    drop_last: bool = False
    """Drop the epoch's last micro-batch if it is incomplete, as torch does. A short last window is not dropped if its
    micro-batches are complete."""

    def __post_init__(self) -> None:
        check_rank(self.rank, self.processes)
        check_batches(self.effective_batch, self.micro_batch)
        self._order: Order = choose_order(self.order, dataset_size(self.source), self.seed)
        per_process = self.micro_batch or -(-self.effective_batch // self.processes)
        self._micro_size = min(per_process * self.processes, self.effective_batch)  # positions of all ranks
        self._epoch = self._skip_updates = 0
        partial = self._order.size % self.effective_batch % self._micro_size
        self.examples_per_epoch = self._order.size - (partial if self.drop_last else 0)
        if not self.examples_per_epoch:
            raise InvalidData(
                f"{self._order.size} samples do not fill one micro-batch of {self._micro_size}; drop_last drops it.",
                fix="Turn drop_last off, or make the batch smaller.",
            )

    @property
    def updates_per_epoch(self) -> int:
        """Number of windows in one epoch."""
        return -(-self.examples_per_epoch // self.effective_batch)

    @property
    def micro_batches_per_epoch(self) -> int:
        """Number of micro-batches of every rank in one epoch, including empty ones."""
        full, remainder = divmod(self.examples_per_epoch, self.effective_batch)
        return full * -(-self.effective_batch // self._micro_size) - (-remainder // self._micro_size)

    def set_epoch(self, epoch: int, skip_updates: int = 0) -> None:
        """Select the epoch that ``__iter__`` yields, and skip its first ``skip_updates`` windows."""
        self._check_skip(skip_updates)
        self._epoch, self._skip_updates = epoch, skip_updates

    def micro_batches(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatchIndices]:
        """Yield every micro-batch of this rank, including empty ones, so that all ranks yield the same number.

        Raises:
            InvalidData: the epoch has fewer than ``skip_updates`` windows.
        """
        self._check_skip(skip_updates)
        return self._micro_batches(self._order.for_epoch(epoch), skip_updates)

    def __iter__(self) -> Iterator[list[int]]:
        micro_batches = self.micro_batches(self._epoch, self._skip_updates)
        return (batch.indices_B.tolist() for batch in micro_batches if len(batch.indices_B))

    def __len__(self) -> int:
        """Return the number of batches that ``__iter__`` yields: this rank's micro-batches that are not empty."""
        full, remainder = divmod(self.examples_per_epoch, self.effective_batch)
        full -= self._skip_updates
        if full < 0:
            return 0
        return full * self._count_nonempty(self.effective_batch) + self._count_nonempty(remainder)

    def _count_nonempty(self, window: int) -> int:
        return (window // self._micro_size) * (self._micro_size > self.rank) + (window % self._micro_size > self.rank)

    def _check_skip(self, skip_updates: int) -> None:
        if not 0 <= skip_updates <= self.updates_per_epoch:
            raise InvalidData(
                f"{skip_updates} updates cannot be skipped: the epoch has {self.updates_per_epoch}.",
                fix="Resume with the dataset and batch size with which this position was saved.",
            )

    def _micro_batches(self, order: Order, skip_updates: int) -> Iterator[MicroBatchIndices]:
        block, block_start = order.take(0, 0), 0
        for start, stop, closes_window in self._micro_batch_bounds(skip_updates):
            if stop > block_start + len(block):
                block_stop = min(max(stop, start + BLOCK_SIZE), self.examples_per_epoch)
                block, block_start = order.take(start, block_stop), start
            indices_B = block[start - block_start : stop - block_start]
            own_B = indices_B if self.processes == 1 else indices_B[self.rank :: self.processes]
            yield MicroBatchIndices(own_B, closes_window, indices_B[:0] if len(own_B) else indices_B[:1])

    def _micro_batch_bounds(self, skip_updates: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the positions [start, stop) of each micro-batch in the global order, and whether it ends its window."""
        end = self.examples_per_epoch
        for window in range(skip_updates * self.effective_batch, end, self.effective_batch):
            window_stop = min(window + self.effective_batch, end)
            for start in range(window, window_stop, self._micro_size):
                stop = min(start + self._micro_size, window_stop)
                yield start, stop, stop == window_stop


def dataset_size(source: Sized | int) -> int:
    """Return the number of samples of a dataset, or the number itself.

    Raises:
        InvalidData: the dataset has no length.
    """
    if isinstance(source, int):
        return source
    try:
        return len(source)
    except TypeError as error:
        raise InvalidData(
            f"A {type(source).__name__} has no length, so it cannot be shuffled.",
            fix="Wrap samples: trueloop.Shards([dataset], iter); batches: IterableSource(loader).",
        ) from error


def check_rank(rank: int, processes: int) -> None:
    """Raise if a rank is not in [0, processes)."""
    if processes < 1 or not 0 <= rank < processes:
        raise InvalidConfig(f"rank is {rank} for {processes} processes.", fix="Ranks count from 0 to processes - 1.")


def check_batches(effective_batch: int, micro_batch: int | None) -> None:
    """Raise for empty batches, and for a micro-batch larger than the window."""
    for name, size in (("effective_batch", effective_batch), ("micro_batch", micro_batch)):
        if size is not None and size < 1:
            raise InvalidConfig(f"{name} is {size}.", fix="A batch has at least one sample.")
    if micro_batch is not None and micro_batch > effective_batch:
        raise InvalidConfig(
            f"micro_batch is {micro_batch}, but effective_batch is only {effective_batch}.",
            why="A micro-batch is a part of the effective batch.",
            fix=f"Make effective_batch at least {micro_batch}, or micro_batch at most {effective_batch}.",
        )


def _rank_share(positions: int, rank: int, processes: int) -> int:
    """Return the number of positions in [0, positions) that belong to this rank."""
    return -(-(positions - rank) // processes) if positions > rank else 0
