"""Load any epoch of a map-style dataset, starting at any update, as micro-batches grouped into windows."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from trueloop.core.errors import InvalidConfig, TrueloopError
from trueloop.core.protocols import MicroBatch
from trueloop.data.fetch import FetchBatch
from trueloop.data.keyed_random import derive_keys
from trueloop.data.order import OrderChoice
from trueloop.data.samplers import MicroBatchIndices, WindowSampler
from trueloop.data.worker_count import choose_workers
from trueloop.data.worker_signals import block_stop_signals, ignore_stop_signals


@dataclass(eq=False, repr=False)
class Loader:
    """Batches of a map-style dataset: a `trueloop.core.protocols.BatchSource`.

    A window depends only on the dataset, ``effective_batch``, ``order`` and ``seed``; ``micro_batch`` and ``processes``
    only split it, ``workers`` only speed it up. The state of the global random generators does not change.

    Raises:
        InvalidConfig: a setting is invalid.
        InvalidData: the dataset is empty or has no length.
    """

    dataset: Any
    """A dataset with a length and indices: of torch, of Hugging Face, or a list of samples."""
    _: KW_ONLY
    effective_batch: int
    """Number of examples per update, over all micro-batches and processes."""
    micro_batch: int | None = None
    """Number of examples per micro-batch and process; None = each window is one micro-batch."""
    order: OrderChoice = "random"
    """"random", "sequential", one weight per sample (see `class_weights`), or an Order."""
    seed: int = 0
    """Seed of the order, and of the random numbers drawn while samples are read."""
    processes: int = 1
    """Number of training processes that share each window."""
    rank: int = 0
    """Rank of this process, from 0."""
    drop_last: bool = False
    """Drop the epoch's last micro-batch if it is incomplete."""
    workers: int | None = 0
    """Number of worker processes; 0 = read in this process, None = time some samples and choose (`choose_workers`)."""
    collate: Callable[[Any], Any] | None = None
    """Function of samples that returns a batch; None = `trueloop.data.collate.collate`."""
    pin_memory: bool = False
    """Copy batches to page-locked memory; useful only for a CUDA device."""
    seed_samples: bool = True
    """Make the random numbers drawn while a sample is read a function of (seed, epoch, index), for any worker. Costs
    60 µs per batch and 8 µs per sample, but nothing for tensors in memory, which need no random numbers."""

    def __post_init__(self) -> None:
        check_loader_settings(self.workers, pin_memory=self.pin_memory)
        self.sampler = WindowSampler(
            self.dataset,
            effective_batch=self.effective_batch,
            micro_batch=self.micro_batch,
            order=self.order,
            seed=self.seed,
            processes=self.processes,
            rank=self.rank,
            drop_last=self.drop_last,
        )
        self._fetch = FetchBatch(self.dataset, self.collate, seed=self.seed, seed_samples=self.seed_samples)
        self._pool: _WorkerPool | None = None

    @property
    def updates_per_epoch(self) -> int:
        """Number of windows in one epoch."""
        return self.sampler.updates_per_epoch

    @property
    def micro_batches_per_epoch(self) -> int:
        """Number of micro-batches of this process in one epoch; equal on every process."""
        return self.sampler.micro_batches_per_epoch

    @property
    def examples_per_epoch(self) -> int:
        """Number of examples in one epoch, over all processes."""
        return self.sampler.examples_per_epoch

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one epoch. If this process has no sample in a micro-batch, ``data`` is padding.

        Args:
            epoch: index of the epoch, from 0.
            skip_updates: number of windows to skip at the start; their samples are not read.

        Raises:
            InvalidData: the epoch has fewer windows than ``skip_updates``.
        """
        micro_indices = self.sampler.micro_batches(epoch, skip_updates)
        if self.workers is None:
            self.workers = self._choose_workers()
        if not self.workers:
            return self._read(epoch, micro_indices)
        if self._pool is None:
            self._pool = _WorkerPool(self._fetch, workers=self.workers, pin_memory=self.pin_memory)
        return self._pool.epoch(
            micro_indices, self.sampler.micro_batches(epoch, skip_updates), seed=self.seed, epoch=epoch
        )

    def _read(self, epoch: int, micro_indices: Iterator[MicroBatchIndices]) -> Iterator[MicroBatch]:
        fetch, pin = self._fetch, self.pin_memory
        for indices, closes_window, padding in micro_indices:
            data = fetch(epoch, indices if len(indices) else padding)
            yield MicroBatch(pin_batch(data) if pin else data, closes_window, indices.tolist())

    def _choose_workers(self) -> int:
        if self._fetch.tensor_data is not None:
            return 0
        samples = min(self.examples_per_epoch // self.processes, len(self.dataset))
        return choose_workers(lambda indices: self._fetch.read(0, indices), samples, self.processes)


class _WorkerPool:
    """Worker processes that run as long as the loader exists and read one epoch at a time."""

    def __init__(self, fetch: FetchBatch, *, workers: int, pin_memory: bool) -> None:
        self._requests = _ReadRequests()
        # With a generator of its own, the DataLoader does not draw the workers' seed from the global generator.
        self._generator = torch.Generator()
        self._loader: DataLoader[Any] = DataLoader(
            fetch,  # pyright: ignore[reportArgumentType] - the batch sampler's requests go to its __getitems__
            batch_sampler=self._requests,  # pyright: ignore[reportArgumentType]
            collate_fn=_identity,
            num_workers=workers,
            worker_init_fn=ignore_stop_signals,
            persistent_workers=True,
            pin_memory=pin_memory,
            generator=self._generator,
        )
        self._generation = 0

    def epoch(
        self, micro_indices: Iterator[MicroBatchIndices], ahead: Iterator[MicroBatchIndices], *, seed: int, epoch: int
    ) -> Iterator[MicroBatch]:
        """Yield one epoch; ``ahead`` yields the same indices earlier, so that workers prefetch their batches."""
        self._generation += 1
        generation = self._generation
        self._generator.manual_seed(int(derive_keys("workers", seed, epoch, 1)[0]))
        self._requests.start(epoch, ahead)
        with block_stop_signals():
            batches = iter(self._loader)
        for indices, closes_window, _ in micro_indices:
            if generation != self._generation:
                raise InvalidConfig(
                    "Another epoch of this loader was started before this one ended.",
                    why="The workers of a loader read one epoch at a time.",
                    fix="Use one loader per epoch, or workers=0.",
                )
            data = next(batches)
            if isinstance(data, TrueloopError):
                raise data
            yield MicroBatch(data, closes_window, indices.tolist())


class _ReadRequests:
    """Batch sampler that yields the requests to the workers, (epoch, indices), in order."""

    def __init__(self) -> None:
        self._epoch, self._indices = 0, iter(())

    def start(self, epoch: int, micro_indices: Iterator[MicroBatchIndices]) -> None:
        self._epoch, self._indices = epoch, micro_indices

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        epoch = self._epoch
        requests = (request.indices_B if len(request.indices_B) else request.padding_1 for request in self._indices)
        return ((epoch, indices.tolist()) for indices in requests)


def _identity(batch: Any) -> Any:
    return batch


def check_loader_settings(workers: int | None, *, pin_memory: bool) -> None:
    """Raise if ``workers`` is negative, or ``pin_memory`` is on without a CUDA device."""
    if workers is not None and workers < 0:
        raise InvalidConfig(f"workers is {workers}.", fix="Set 0 or more, or None to choose automatically.")
    if pin_memory and not torch.cuda.is_available():
        raise InvalidConfig("pin_memory is on, but there is no CUDA device.", fix="Turn it off.")


def pin_batch(data: Any) -> Any:
    """Return the batch with all CPU tensors in page-locked memory."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory(), data)
