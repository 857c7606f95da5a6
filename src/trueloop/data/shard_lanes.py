"""Read lanes of shards in worker processes, and interleave the lanes.

A worker owns complete lanes, so the samples of a lane do not depend on the number of workers.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from trueloop.core.errors import TrueloopError
from trueloop.data.keyed_random import derive_keys
from trueloop.data.shards import END, LanePosition, ShardEpoch, ShardSample
from trueloop.data.worker_signals import block_stop_signals, ignore_stop_signals

CHUNK_SAMPLES = 16  # number of samples of one lane per message; more would take memory, fewer would be slower

T = TypeVar("T")


def round_robin(lanes: Sequence[Iterator[T]], first: int) -> Iterator[tuple[int, T]]:
    """Yield (lane, item) from each lane in turn, skipping those that have ended.

    Args:
        lanes: iterators, at least one.
        first: index of the lane to start with.
    """
    remaining = list(range(len(lanes)))
    upcoming = remaining[first:]
    while remaining:
        for lane in upcoming:
            item = next(lanes[lane], END)
            if item is END:
                remaining.remove(lane)
            else:
                yield lane, item
        upcoming = list(remaining)


class WorkerLanes:
    """Reads some lanes of one epoch ahead, in worker processes that end with the epoch.

    Args:
        shard_epoch: the epoch.
        starts: maps the index of each lane to read to its start position.
        workers: number of worker processes, at most one per lane.
    """

    def __init__(self, shard_epoch: ShardEpoch, starts: Mapping[int, LanePosition], *, workers: int) -> None:
        # With a generator of its own, the DataLoader does not draw the workers' seed from the global generator.
        (key,) = derive_keys("workers", shard_epoch.seed, shard_epoch.epoch, 1)
        generator = torch.Generator().manual_seed(int(key >> 1))
        loader: DataLoader[Any] = DataLoader(
            _LaneChunks(shard_epoch, starts),
            batch_size=None,
            collate_fn=_identity,
            num_workers=workers,
            generator=generator,
            worker_init_fn=ignore_stop_signals,
        )
        with block_stop_signals():
            self._messages = iter(loader)
        self._received: dict[int, deque[ShardSample]] = {lane: deque() for lane in starts}
        self._open_lanes = set(starts)

    def read_lane(self, lane: int) -> Iterator[ShardSample]:
        """Yield the samples of one lane; samples of other lanes are stored until they are requested.

        Raises:
            TrueloopError: a worker raised it.
        """
        samples = self._received[lane]
        while samples or lane in self._open_lanes:
            if samples:
                yield samples.popleft()
            else:
                self._receive()

    def _receive(self) -> None:
        message = next(self._messages)
        if isinstance(message, TrueloopError):
            raise message
        for lane, chunk in cast("list[tuple[int, list[ShardSample]]]", message):
            for sample in chunk:
                data = tree_map(_unpack, sample.data, is_leaf=lambda value: isinstance(value, _PackedTensor))
                self._received[lane].append(sample._replace(data=data))
            if len(chunk) < CHUNK_SAMPLES:
                self._open_lanes.discard(lane)


class _LaneChunks(IterableDataset[Any]):
    """Yields, in a worker process, chunks of each of the worker's lanes; a lane ends with a short chunk."""

    def __init__(self, shard_epoch: ShardEpoch, starts: Mapping[int, LanePosition]) -> None:
        self._shard_epoch, self._starts = shard_epoch, starts

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        assert worker is not None
        lanes = self._shard_epoch.lanes
        own_lanes = list(self._starts)[worker.id :: worker.num_workers]
        _hide_worker()
        readers = {lane: self._shard_epoch.samples(lanes[lane], self._starts[lane]) for lane in own_lanes}
        try:
            while readers:
                message = [(lane, _read_chunk(samples)) for lane, samples in readers.items()]
                yield message
                for lane, chunk in message:
                    if len(chunk) < CHUNK_SAMPLES:
                        del readers[lane]
        except TrueloopError as error:
            yield error  # if it were raised, DataLoader would wrap its text in a traceback


def _read_chunk(samples: Iterator[ShardSample]) -> list[ShardSample]:
    chunk = islice(samples, CHUNK_SAMPLES)
    return [sample._replace(data=tree_map_only(Tensor, _pack, sample.data)) for sample in chunk]


def _hide_worker() -> None:
    """Hide the worker from readers, which otherwise might skip samples, as iterable datasets do in a worker."""
    from torch.utils.data._utils import worker

    worker._worker_info = None  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001


class _PackedTensor(NamedTuple):
    """A tensor to send to another process as an array; a tensor would keep a file open until it is received."""

    memory: Any
    dtype: torch.dtype
    shape: tuple[int, ...]


def _pack(tensor: Tensor) -> Any:
    if tensor.layout is not torch.strided or not tensor.is_cpu or type(tensor) is not Tensor:
        return tensor
    contiguous = tensor.detach().contiguous()
    return _PackedTensor(contiguous.flatten().view(torch.uint8).numpy(), contiguous.dtype, tuple(contiguous.shape))


def _unpack(value: Any) -> Any:
    if not isinstance(value, _PackedTensor):
        return value
    return torch.from_numpy(value.memory).view(value.dtype).reshape(value.shape)


def _identity(message: Any) -> Any:
    return message
