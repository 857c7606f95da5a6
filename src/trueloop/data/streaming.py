"""Load batches of sharded data, grouped into windows, starting at any update."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from itertools import accumulate, islice, repeat
from typing import Any, NamedTuple

from trueloop.core.errors import InvalidData
from trueloop.core.protocols import MicroBatch
from trueloop.data.collate import collate as default_collate
from trueloop.data.loader import check_loader_settings, pin_batch
from trueloop.data.sample_rng import preserve_cpu_generators, seed_generators
from trueloop.data.samplers import check_batches, check_rank
from trueloop.data.shard_lanes import WorkerLanes, round_robin
from trueloop.data.shards import LanePosition, ShardEpoch, Shards, ShardSample, position_after, split_round_robin
from trueloop.data.worker_count import choose_workers

ASSUMED_SAMPLES = 10**9  # for choosing the number of workers if the number of samples is unknown


class StreamPosition(NamedTuple):
    """Position between two windows of an epoch."""

    epoch: int
    updates: int
    lanes: list[LanePosition]
    next_lane: int
    """Index of the lane that has the next sample."""


class _StreamMicroBatch(NamedTuple):
    """One micro-batch of all ranks."""

    own_samples: list[ShardSample]
    """Samples of this rank."""
    closes_window: bool
    is_partial: bool
    """True if the micro-batch is incomplete because the data has ended."""


@dataclass(eq=False, repr=False)
class ShardLoader:
    """Batches of `Shards`: a `trueloop.core.protocols.BatchSource`.

    An epoch is one sequence of samples that takes one sample of each lane in turn; ``effective_batch`` samples are a
    window. The sequence depends only on the shards, their ``interleave`` and ``buffer``, ``shuffle`` and ``seed``;
    ``micro_batch`` and ``processes`` only split it, ``workers`` only speed it up. Global generators keep their state.

    If ``sizes`` are given, ``processes`` divides the number of lanes, and ``drop_last`` is off, a process reads only
    the shards of its own lanes. Otherwise every process reads all shards and uses its share, so that all of them know
    where the windows and the epoch end.

    Raises:
        InvalidConfig: a setting is invalid.
        InvalidData: ``drop_last`` leaves no batch.
    """

    data: Shards
    _: KW_ONLY
    effective_batch: int
    """Number of examples per update, over all micro-batches and processes."""
    micro_batch: int | None = None
    """Number of examples per micro-batch and process; None = each window is one micro-batch."""
    shuffle: bool = True
    """Whether to shuffle shards and samples; False = their original order."""
    seed: int = 0
    """Seed of the order, and of the random numbers drawn while samples are read."""
    processes: int = 1
    """Number of training processes that share each window."""
    rank: int = 0
    """Rank of this process, from 0."""
    drop_last: bool = False
    """Drop the epoch's last micro-batch if it is incomplete."""
    workers: int | None = 0
    """Number of worker processes, at most one per lane; 0 = read in this process, None = choose by timing."""
    collate: Callable[[Any], Any] | None = None
    """Function of samples that returns a batch; None = `trueloop.data.collate.collate`."""
    pin_memory: bool = False
    """Copy batches to page-locked memory; useful only for a CUDA device."""
    seed_samples: bool = True
    """Make the random numbers drawn while a sample is read a function of (seed, epoch, shard, index in the shard)."""

    def __post_init__(self) -> None:
        check_rank(self.rank, self.processes)
        check_batches(self.effective_batch, self.micro_batch)
        check_loader_settings(self.workers, pin_memory=self.pin_memory)
        self._share = self.micro_batch or -(-self.effective_batch // self.processes)  # samples
        self._full_size = min(self._share * self.processes, self.effective_batch)  # of all processes
        self._lane_count = len(self._shard_epoch(0).lanes)
        self._by_lane = self.data.sizes is not None and self._lane_count % self.processes == 0 and not self.drop_last
        size = self.data.size
        partial = size % self.effective_batch % self._full_size if size is not None and self.drop_last else 0
        self.examples_per_epoch = None if size is None else size - partial
        if self.examples_per_epoch == 0:
            raise InvalidData(
                f"{size} samples do not fill one micro-batch of {self._full_size}; drop_last drops it.",
                fix="Turn drop_last off, or make the batch smaller.",
            )
        sizes = self.data.sizes
        self._first_indices = None if sizes is None else list(accumulate(sizes, initial=0))  # per shard
        self._position: StreamPosition | None = None
        self._restored: StreamPosition | None = None
        self._padding: list[ShardSample] = []

    @property
    def updates_per_epoch(self) -> int | None:
        """Number of windows in one epoch; None if the sizes are unknown."""
        return None if self.examples_per_epoch is None else -(-self.examples_per_epoch // self.effective_batch)

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one epoch. If this process has no sample in a micro-batch, ``data`` is padding.

        Args:
            epoch: index of the epoch, from 0.
            skip_updates: number of windows to skip at the start. With sizes, or after `load_position_state`, finished
                shards are not opened; otherwise the skipped samples are read and dropped.

        Raises:
            InvalidData: the epoch has fewer windows than ``skip_updates``.
        """
        start, drop = self._start(self._shard_epoch(epoch), skip_updates)
        self._position = None if drop else start
        if self.workers is None:
            self.workers = self._choose_workers()
        return self._micro_batches(start, drop)

    def position_state(self) -> dict[str, Any] | None:
        """Return the position after the last window; None if the number of updates determines it."""
        position = self._restored or self._position
        if position is None or self.data.sizes is not None:
            return None
        lanes = [list(chunks) for chunks in position.lanes]
        return {
            "epoch": position.epoch,
            "updates": position.updates,
            "lanes": lanes,
            "next_lane": position.next_lane,
            "source": self._identity(),
        }

    def load_position_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved position: the next call of `epoch` starts there.

        Raises:
            InvalidData: the position was saved with other shards, another seed or other settings.
        """
        saved, expected = state.get("source"), self._identity()
        if saved != expected:
            raise InvalidData(
                f"The position in the data was saved with {saved}, but this run has {expected}.",
                why="The samples now come in another order, so resuming there would skip some and repeat others.",
                fix="Use the same shards and settings, or start over.",
            )
        lanes = [LanePosition(*position) for position in state["lanes"]]
        self._restored = StreamPosition(state["epoch"], state["updates"], lanes, state["next_lane"])

    def _identity(self) -> dict[str, Any]:
        data = self.data
        return {
            "shards": len(data.shards),
            "interleave": self._lane_count,
            "buffer": data.buffer if self.shuffle else 0,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def _shard_epoch(self, epoch: int) -> ShardEpoch:
        return ShardEpoch(
            data=self.data, seed=self.seed, epoch=epoch, shuffle=self.shuffle, seed_samples=self.seed_samples
        )

    def _start(self, shard_epoch: ShardEpoch, skip_updates: int) -> tuple[StreamPosition, int]:
        """Return the start position, and the number of windows to read and drop after it."""
        restored, self._restored = self._restored, None
        if restored is not None and (restored.epoch, restored.updates) == (shard_epoch.epoch, skip_updates):
            return restored, 0
        total, sizes = self.updates_per_epoch, self.data.sizes
        if skip_updates < 0 or (total is not None and skip_updates > total):
            raise _cannot_skip(skip_updates, f"the epoch has {total}")
        if sizes is None or not skip_updates:
            return StreamPosition(shard_epoch.epoch, 0, [LanePosition(0, 0)] * self._lane_count, 0), skip_updates
        lanes = [[sizes[shard] for shard in lane] for lane in shard_epoch.lanes]
        skipped = min(skip_updates * self.effective_batch, sum(sizes))
        counts, next_lane = split_round_robin([sum(lane) for lane in lanes], skipped)
        positions = [position_after(lane, count) for lane, count in zip(lanes, counts, strict=True)]
        return StreamPosition(shard_epoch.epoch, skip_updates, positions, next_lane), 0

    def _micro_batches(self, start: StreamPosition, drop: int) -> Iterator[MicroBatch]:
        micro_batches = self._cut_micro_batches(self._sequence(start), start)
        if self.drop_last:
            micro_batches = _drop_partial(micro_batches)
        empty = start.updates == 0
        for dropped in range(drop):
            with self._generators():
                closed = any(micro.closes_window for micro in micro_batches)  # reads to the end of one window
            if not closed:
                raise _cannot_skip(drop, f"the epoch ended after {dropped}")
        while True:
            with self._generators():
                micro = next(micro_batches, None)
                batch = None if micro is None else self._batch(micro)
            if batch is None:
                break
            yield batch
            empty = False
        if empty and not drop:
            raise InvalidData(
                f"The shards hold {'less than one batch' if self.drop_last else 'no samples'}.",
                fix="Check that the reader returns an iterable of samples.",
            )

    def _cut_micro_batches(
        self, stream: Iterator[tuple[int, ShardSample | None]], start: StreamPosition
    ) -> Iterator[_StreamMicroBatch]:
        """Split the sequence: a micro-batch ends where its window ends or where a process would exceed its share."""
        positions, next_lane, updates = list(start.lanes), start.next_lane, start.updates
        own_samples, sample_counts, in_window = list[ShardSample](), [0] * self.processes, 0
        for lane, sample in stream:
            owner = (lane if self._by_lane else in_window) % self.processes
            if sample_counts[owner] == self._share:
                yield _StreamMicroBatch(own_samples, closes_window=False, is_partial=False)
                own_samples, sample_counts = [], [0] * self.processes
            sample_counts[owner] += 1
            in_window += 1
            next_lane = (lane + 1) % self._lane_count
            if sample is not None:
                positions[lane] = sample.after
                if owner == self.rank:
                    own_samples.append(sample)
            if in_window == self.effective_batch:
                updates += 1
                self._position = StreamPosition(start.epoch, updates, list(positions), next_lane)
                yield _StreamMicroBatch(own_samples, closes_window=True, is_partial=False)
                own_samples, sample_counts, in_window = [], [0] * self.processes, 0
        self._position = StreamPosition(start.epoch, updates + bool(in_window), positions, next_lane)
        if in_window:
            missing = self.effective_batch - in_window
            is_partial = sum(sample_counts) < min(self._full_size, sum(sample_counts) + missing)
            yield _StreamMicroBatch(own_samples, closes_window=True, is_partial=is_partial)

    def _sequence(self, start: StreamPosition) -> Iterator[tuple[int, ShardSample | None]]:
        """Yield (lane, sample) of the epoch from ``start`` on; the sample is None in other processes' lanes."""
        shard_epoch = self._shard_epoch(start.epoch)
        lanes = shard_epoch.lanes
        own_lanes = [lane for lane in range(len(lanes)) if not self._by_lane or lane % self.processes == self.rank]
        starts = {lane: start.lanes[lane] for lane in own_lanes}
        workers = min(self.workers or 0, len(own_lanes))
        if workers:
            worker_lanes = WorkerLanes(shard_epoch, starts, workers=workers)
            readers = {lane: worker_lanes.read_lane(lane) for lane in own_lanes}
        else:
            readers = {lane: shard_epoch.samples(lanes[lane], position) for lane, position in starts.items()}
        sequences: list[Iterator[ShardSample | None]] = [
            readers.get(lane) or self._placeholders(shards, start.lanes[lane]) for lane, shards in enumerate(lanes)
        ]
        return round_robin(sequences, start.next_lane)

    def _placeholders(self, shards: Sequence[int], start: LanePosition) -> Iterator[None]:
        """Yield None for each sample that remains in the lane of another process, whose sizes are known."""
        assert self.data.sizes is not None
        return repeat(None, sum(self.data.sizes[shard] for shard in shards[start.shard :]) - start.offset)

    def _batch(self, micro: _StreamMicroBatch) -> MicroBatch:
        if micro.own_samples:
            self._padding = micro.own_samples[:1]
        samples = micro.own_samples or self._padding or self._read_padding_sample()
        if self.seed_samples:
            seed_generators(samples[0].seed)
        try:
            data = (self.collate or default_collate)([sample.data for sample in samples])
        except InvalidData as error:
            origins = [(sample.shard, sample.offset) for sample in samples]
            raise InvalidData(str(error), fix=f"The batch contains these (shard, index): {origins}.") from error
        indices: Sequence[int] | None = None
        if not micro.own_samples:
            indices = ()
        elif self._first_indices is not None:
            indices = [self._first_indices[sample.shard] + sample.offset for sample in micro.own_samples]
        return MicroBatch(pin_batch(data) if self.pin_memory else data, micro.closes_window, indices)

    def _read_padding_sample(self) -> list[ShardSample]:
        """Read the data's first sample as padding, for a process that has had no sample yet."""
        shard_epoch = replace(self._shard_epoch(0), shuffle=False)  # a shuffle buffer would be filled first
        return [next(shard_epoch.samples(shard_epoch.lanes[0], LanePosition(0, 0)))]

    def _generators(self) -> AbstractContextManager[None]:
        return preserve_cpu_generators() if self.seed_samples else nullcontext()

    def _choose_workers(self) -> int:
        shard_epoch = replace(self._shard_epoch(0), shuffle=False)  # a shuffle buffer would be filled first

        def read(indices: list[int]) -> object:
            return list(islice(shard_epoch.samples(shard_epoch.lanes[0], LanePosition(0, 0)), len(indices)))

        samples = (self.data.size or ASSUMED_SAMPLES) // self.processes
        return min(choose_workers(read, samples, self.processes), self._lane_count)


def _drop_partial(micro_batches: Iterator[_StreamMicroBatch]) -> Iterator[_StreamMicroBatch]:
    """Drop a partial last micro-batch; the micro-batch before it then closes the window."""
    pending: _StreamMicroBatch | None = None
    for micro in micro_batches:
        if pending is not None:
            yield pending._replace(closes_window=micro.is_partial)
        pending = None if micro.is_partial or micro.closes_window else micro
        if micro.closes_window and not micro.is_partial:
            yield micro


def _cannot_skip(skip_updates: int, reason: str) -> InvalidData:
    return InvalidData(
        f"{skip_updates} updates cannot be skipped: {reason}.",
        fix="Resume with the dataset and batch size with which this position was saved.",
    )
