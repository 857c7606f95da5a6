"""Batches of data in shards, from any update on, cut into windows."""

from __future__ import annotations

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

ASSUMED_SAMPLES = 10**9  # samples assumed where the number is unknown, to judge whether workers pay


class StreamPosition(NamedTuple):
    """Where an epoch is, between two windows."""

    epoch: int
    updates: int
    lanes: list[LanePosition]
    next_lane: int
    """The lane whose sample is next."""


class _StreamMicroBatch(NamedTuple):
    """One micro-batch of all ranks."""

    own: list[ShardSample]
    """The samples of this rank."""
    closes_window: bool
    partial: bool
    """The end of the data cut it short."""


@dataclass(eq=False, repr=False)
class ShardLoader:
    """Batches of `Shards`: a `trueloop.core.protocols.BatchSource`.

    The epoch is one sequence of samples, a sample of each lane in turn; window w is its w-th ``effective_batch``
    samples. The sequence depends on the shards, their ``interleave`` and ``buffer``, ``shuffle`` and ``seed`` alone;
    ``micro_batch`` and ``processes`` only cut it up, ``workers`` only speed it up. The global generators are left as
    they are.

    Where ``sizes`` are given and ``processes`` divides the number of lanes, a process reads the shards of its own
    lanes only (not with ``drop_last``). Otherwise every process reads all shards and keeps its share, so that all of
    them know where the windows and the epoch end.

    Raises:
        InvalidConfig: a setting that cannot work.
        InvalidData: ``drop_last`` leaves nothing.
    """

    data: Shards
    _: KW_ONLY
    effective_batch: int
    """Examples between two updates, over all micro-batches and processes."""
    micro_batch: int | None = None
    """Examples per micro-batch and process; None = the whole window at once."""
    shuffle: bool = True
    """False: shards and samples as they lie, one after another."""
    seed: int = 0
    """Of the order, and of the randomness inside samples."""
    processes: int = 1
    """Training processes that share each window."""
    rank: int = 0
    """This process, from 0."""
    drop_last: bool = False
    """Leave out the epoch's last micro-batch if the end of the data cuts it short."""
    workers: int | None = 0
    """Processes that read ahead, at most one per lane; 0 = read in this one, None = time a few samples and choose."""
    collate: Callable[[Any], Any] | None = None
    """Samples to a batch; None = `trueloop.data.collate.collate`."""
    pin_memory: bool = False
    """Put batches into page-locked memory: pays on the way to a CUDA device only."""
    seed_samples: bool = True
    """Make the random numbers drawn while a sample is read a function of (seed, epoch, shard, place in the shard)."""

    def __post_init__(self) -> None:
        check_rank(self.rank, self.processes)
        check_batches(self.effective_batch, self.micro_batch)
        check_loader_settings(self.workers, pin_memory=self.pin_memory)
        self._per_process = self.micro_batch or -(-self.effective_batch // self.processes)
        self._full_size = min(self._per_process * self.processes, self.effective_batch)  # samples of a whole micro-batch
        self._width = len(self._shard_epoch(0).lanes)
        self._by_lane = self.data.sizes is not None and self._width % self.processes == 0 and not self.drop_last
        size = self.data.size
        partial = size % self.effective_batch % self._full_size if size is not None and self.drop_last else 0
        self.examples_per_epoch = None if size is None else size - partial
        if self.examples_per_epoch == 0:
            raise InvalidData(
                f"{size} samples do not fill one micro-batch of {self._full_size}, and drop_last leaves it out.",
                fix="Turn drop_last off, or make the batch smaller.",
            )
        sizes = self.data.sizes
        self._firsts = None if sizes is None else list(accumulate(sizes, initial=0))  # of each shard
        self._position: StreamPosition | None = None
        self._restored: StreamPosition | None = None
        self._padding: list[ShardSample] = []

    @property
    def updates_per_epoch(self) -> int | None:
        """Windows in one epoch; None where the sizes are unknown."""
        return None if self.examples_per_epoch is None else -(-self.examples_per_epoch // self.effective_batch)

    def epoch(self, epoch: int, skip_updates: int = 0) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one epoch; where this process's share of one is empty, ``data`` stands in.

        Args:
            epoch: counted from 0.
            skip_updates: windows to leave out at the start. With sizes, or where `load_position_state` was told, no
                shard that is wholly behind is opened; otherwise their samples are read and dropped.

        Raises:
            InvalidData: the epoch has fewer windows than ``skip_updates``.
        """
        start, drop = self._start(self._shard_epoch(epoch), skip_updates)
        self._position = None if drop else start
        if self.workers is None:
            self.workers = self._choose_workers()
        return self._micro_batches(start, drop)

    def position_state(self) -> dict[str, Any] | None:
        """Give the position after the last window; None where the number of updates says it all."""
        at = self._restored or self._position
        if at is None or self.data.sizes is not None:
            return None
        lanes = [list(place) for place in at.lanes]
        return {"epoch": at.epoch, "updates": at.updates, "lanes": lanes, "turn": at.next_lane, "of": self._identity()}

    def load_position_state(self, state: Mapping[str, Any]) -> None:
        """Take over a saved position: the next call of `epoch` begins there.

        Raises:
            InvalidData: it was saved with shards, a seed or settings that make another order.
        """
        saved, mine = state.get("of"), self._identity()
        if saved != mine:
            raise InvalidData(
                f"The position in the data was saved with {saved}; now it is {mine}.",
                why="The samples come in another order, so the place cannot be found in it.",
                fix="Use the same shards and settings, or start over.",
            )
        lanes = [LanePosition(*place) for place in state["lanes"]]
        self._restored = StreamPosition(state["epoch"], state["updates"], lanes, state["turn"])

    def _identity(self) -> dict[str, Any]:
        data = self.data
        return {
            "shards": len(data.shards),
            "interleave": self._width,
            "buffer": data.buffer if self.shuffle else 0,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def _shard_epoch(self, epoch: int) -> ShardEpoch:
        return ShardEpoch(
            data=self.data, seed=self.seed, epoch=epoch, shuffle=self.shuffle, seed_samples=self.seed_samples
        )

    def _start(self, of: ShardEpoch, skip_updates: int) -> tuple[StreamPosition, int]:
        """Give the position to begin at, and the windows to read and drop from there."""
        restored, self._restored = self._restored, None
        if restored is not None and (restored.epoch, restored.updates) == (of.epoch, skip_updates):
            return restored, 0
        total, sizes = self.updates_per_epoch, self.data.sizes
        if skip_updates < 0 or (total is not None and skip_updates > total):
            raise _cannot_skip(skip_updates, f"the epoch has {total}")
        if sizes is None or not skip_updates:
            return StreamPosition(of.epoch, 0, [LanePosition(0, 0)] * self._width, 0), skip_updates
        lanes = [[sizes[shard] for shard in lane] for lane in of.lanes]
        passed = min(skip_updates * self.effective_batch, sum(sizes))
        counts, turn = split_round_robin([sum(lane) for lane in lanes], passed)
        places = [position_after(lane, count) for lane, count in zip(lanes, counts, strict=True)]
        return StreamPosition(of.epoch, skip_updates, places, turn), 0

    def _micro_batches(self, start: StreamPosition, drop: int) -> Iterator[MicroBatch]:
        cuts = self._cut_micro_batches(self._sequence(start), start)
        if self.drop_last:
            cuts = _drop_partial(cuts)
        empty = start.updates == 0
        for dropped in range(drop):
            with self._generators():
                closed = any(cut.closes_window for cut in cuts)  # reads to the end of one window
            if not closed:
                raise _cannot_skip(drop, f"the epoch ended after {dropped}")
        while True:
            with self._generators():
                cut = next(cuts, None)
                batch = None if cut is None else self._batch(cut)
            if batch is None:
                break
            yield batch
            empty = False
        if empty and not drop:
            raise InvalidData(
                f"The shards hold {'less than one batch' if self.drop_last else 'no samples'}.",
                fix="Does the reader return an iterable of samples?",
            )

    def _cut_micro_batches(self, stream: Iterator[tuple[int, ShardSample | None]], start: StreamPosition) -> Iterator[_StreamMicroBatch]:
        """Cut the sequence: a micro-batch ends where a process would get more than its share, or with its window."""
        places, turn, updates = list(start.lanes), start.next_lane, start.updates
        own, shares, in_window = list[ShardSample](), [0] * self.processes, 0
        for lane, drawn in stream:
            owner = (lane if self._by_lane else in_window) % self.processes
            if shares[owner] == self._per_process:
                yield _StreamMicroBatch(own, closes_window=False, partial=False)
                own, shares = [], [0] * self.processes
            shares[owner] += 1
            in_window += 1
            turn = (lane + 1) % self._width
            if drawn is not None:
                places[lane] = drawn.after
                if owner == self.rank:
                    own.append(drawn)
            if in_window == self.effective_batch:
                updates += 1
                self._position = StreamPosition(start.epoch, updates, list(places), turn)
                yield _StreamMicroBatch(own, closes_window=True, partial=False)
                own, shares, in_window = [], [0] * self.processes, 0
        self._position = StreamPosition(start.epoch, updates + bool(in_window), places, turn)
        if in_window:
            missing = self.effective_batch - in_window
            yield _StreamMicroBatch(own, closes_window=True, partial=sum(shares) < min(self._full_size, sum(shares) + missing))

    def _sequence(self, start: StreamPosition) -> Iterator[tuple[int, ShardSample | None]]:
        """Yield (lane, sample) of the epoch from a position on; None for a sample in a lane of another process."""
        of = self._shard_epoch(start.epoch)
        lanes = of.lanes
        mine = [lane for lane in range(len(lanes)) if not self._by_lane or lane % self.processes == self.rank]
        starts = {lane: start.lanes[lane] for lane in mine}
        workers = min(self.workers or 0, len(mine))
        if workers:
            ahead = WorkerLanes(of, starts, workers=workers)
            read = {lane: ahead.read_lane(lane) for lane in mine}
        else:
            read = {lane: of.samples(lanes[lane], place) for lane, place in starts.items()}
        others = (self._placeholders(lane, place) for lane, place in zip(lanes, start.lanes, strict=True))
        return round_robin([read.get(lane, other) for lane, other in enumerate(others)], start.next_lane)

    def _placeholders(self, lane: Sequence[int], start: LanePosition) -> Iterator[None]:
        left = sum(self.data.sizes[shard] for shard in lane[start.shard :]) - start.offset if self.data.sizes else 0
        return repeat(None, left)

    def _batch(self, cut: _StreamMicroBatch) -> MicroBatch:
        if cut.own:
            self._padding = cut.own[:1]
        samples = cut.own or self._padding or self._read_padding_sample()
        if self.seed_samples:
            seed_generators(samples[0].seed)
        try:
            data = (self.collate or default_collate)([drawn.data for drawn in samples])
        except InvalidData as error:
            made_of = [(drawn.shard, drawn.offset) for drawn in samples]
            raise InvalidData(str(error), fix=f"The batch is made of these (shard, place): {made_of}.") from error
        firsts = self._firsts
        indices = [firsts[drawn.shard] + drawn.offset for drawn in cut.own] if firsts else None if cut.own else ()
        return MicroBatch(pin_batch(data) if self.pin_memory else data, cut.closes_window, indices)

    def _read_padding_sample(self) -> list[ShardSample]:
        """Read what stands in before this process has had any sample: the first there is, whoever's it is."""
        of = replace(self._shard_epoch(0), shuffle=False)  # a shuffle buffer would be filled before the first sample comes
        return [next(of.samples(of.lanes[0], LanePosition(0, 0)))]

    def _generators(self) -> AbstractContextManager[None]:
        return preserve_cpu_generators() if self.seed_samples else nullcontext()

    def _choose_workers(self) -> int:
        of = replace(self._shard_epoch(0), shuffle=False)  # a shuffle buffer would be filled before the first sample is timed

        def read(indices: list[int]) -> object:
            return list(islice(of.samples(of.lanes[0], LanePosition(0, 0)), len(indices)))

        samples = (self.data.size or ASSUMED_SAMPLES) // self.processes
        return min(choose_workers(read, samples, self.processes), self._width)


def _drop_partial(cuts: Iterator[_StreamMicroBatch]) -> Iterator[_StreamMicroBatch]:
    """Leave out a partial last micro-batch; the one before it then closes the window."""
    held: _StreamMicroBatch | None = None
    for cut in cuts:
        if held is not None:
            yield held._replace(closes_window=cut.partial)
        held = None if cut.partial or cut.closes_window else cut
        if cut.closes_window and not cut.partial:
            yield cut


def _cannot_skip(skip_updates: int, because: str) -> InvalidData:
    return InvalidData(
        f"{skip_updates} updates cannot be skipped: {because}.",
        fix="Was this position saved with another dataset or batch size?",
    )
