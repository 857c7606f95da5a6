"""Data in shards: the order of the shards in an epoch, and of the samples in each shard.

An epoch shuffles the shards and distributes them round-robin over L lanes; a lane reads its shards one after another.
All random numbers are hashes of (seed, epoch, shard, position), so a lane can start anywhere without a generator state.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate, count, pairwise
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import numpy as np

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.keyed_random import derive_keys, hash_positions
from trueloop.data.order import order
from trueloop.data.sample_rng import SEED_LIMIT, seed_generators

END: Final[Any] = object()
_BLOCK = 256  # number of hashes computed at a time: 20 µs, while a single one takes 5 µs


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shards:
    """A dataset in shards that are read sequentially: files, archives, tables, any iterables.

    Every sample is read once per epoch. The order of the shards changes each epoch, several shards are read in
    parallel, and the samples of each pass through a shuffle buffer; at most ``interleave * buffer`` samples are in
    memory. A resumed run continues with exactly the next sample. Its position is computed from ``sizes``, or saved with
    the run if they are unknown; in both cases only the current shards are read again from their start.

    Example:
        ``Shards(sorted(Path("data").glob("*.jsonl")), read_lines)``; ``Shards([iterable_dataset], iter)``
    """

    shards: Sequence[Any]
    """One argument of ``read`` per shard: a path, URL, number or iterable."""
    read: Callable[[Any], Iterable[Any]]
    """Function of a shard that returns its samples: always the same ones in the same order, except for augmentation."""
    _: KW_ONLY
    sizes: Sequence[int] | None = None
    """Number of samples in each shard; None = unknown, and then the length of an epoch is unknown too."""
    interleave: int = 4
    """L: number of shards read in parallel, one sample from each in turn. It changes the order of the samples, and is
    the largest useful number of workers. If it is a multiple of ``processes``, each process reads only its shards."""
    buffer: int = 256
    """Number of samples in the shuffle buffer of one shard; 0 = no shuffling within a shard."""

    def __post_init__(self) -> None:
        if isinstance(self.shards, (str, bytes)) or not isinstance(self.shards, Sequence) or not len(self.shards):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidData(
                f"The shards are {self.shards!r}.",
                fix='Give a list with at least one shard: sorted(Path("data").glob("*.jsonl")).',
            )
        if not callable(self.read):
            raise InvalidData(
                f"The reader is a {type(self.read).__name__}.", fix="Give a function of a shard that returns samples."
            )
        if self.interleave < 1:
            raise InvalidConfig(f"interleave is {self.interleave}.", fix="Set 1 or more.")
        if self.buffer < 0:
            raise InvalidConfig(f"buffer is {self.buffer}.", fix="Set 0 or more samples.")
        if self.sizes is not None:
            _check_sizes(self.sizes, len(self.shards))

    @property
    def size(self) -> int | None:
        """Number of samples in all shards; None if unknown."""
        return None if self.sizes is None else sum(self.sizes)

    def describe_shard(self, shard: int) -> str:
        """Describe a shard: "shard 3 ('train-3.jsonl')"."""
        value = self.shards[shard]
        return f"shard {shard} ({str(value) if isinstance(value, PurePath) else value!r})"


class LanePosition(NamedTuple):
    """Position in a lane."""

    shard: int
    """Number of shards that the lane has finished."""
    offset: int
    """Number of samples that the lane has read from its current shard."""


class ShardSample(NamedTuple):
    """One sample and its origin."""

    data: Any
    shard: int
    """Index of the sample's shard in `Shards.shards`."""
    offset: int
    """Index of the sample in the shard, in reading order."""
    seed: int
    """Seed with which the generators were seeded before the sample was read."""
    after: LanePosition
    """Position of the lane after this sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEpoch:
    """One epoch over shards; its samples depend on these fields only."""

    data: Shards
    seed: int
    epoch: int
    shuffle: bool
    """Whether to shuffle shards and samples; False = their original order."""
    seed_samples: bool
    """Whether to seed the global generators before each sample is read."""

    @property
    def lanes(self) -> list[list[int]]:
        """Indices of the shards of each lane, in the order in which they are read."""
        total = len(self.data.shards)
        if not self.shuffle:
            return [list(range(total))]
        ordered = order(total, self.seed, self.epoch).take(0, total).tolist()
        lane_count = min(self.data.interleave, total)
        return [ordered[lane::lane_count] for lane in range(lane_count)]

    def samples(self, lane: Sequence[int], start: LanePosition) -> Iterator[ShardSample]:
        """Read one lane from a position on. The caller has to restore the global generators.

        Args:
            lane: indices of the lane's shards.
            start: position to start at; earlier shards are not opened, earlier samples of its shard are dropped.

        Raises:
            InvalidData: the number of samples in a shard differs from ``sizes``.
            Exception: what the reader raises.
        """
        for index in range(start.shard, len(lane)):
            skipped = start.offset if index == start.shard else 0
            for read_count, (offset, seed, sample) in enumerate(self._read_shuffled(lane[index]), 1):
                if read_count > skipped:
                    yield ShardSample(sample, lane[index], offset, seed, LanePosition(index, read_count))

    def _read_shuffled(self, shard: int) -> Iterator[tuple[int, int, Any]]:
        size = self.data.buffer if self.shuffle else 0
        if size == 0:
            yield from self._read(shard)
            return
        draws = _hash_stream(f"buffer {shard}", self.seed, self.epoch)
        buffer: list[tuple[int, int, Any]] = []
        for sample in self._read(shard):
            if len(buffer) < size:
                buffer.append(sample)
                continue
            slot = next(draws) % size
            yield buffer[slot]
            buffer[slot] = sample
        while buffer:
            slot = next(draws) % len(buffer)
            buffer[slot], buffer[-1] = buffer[-1], buffer[slot]
            yield buffer.pop()

    def _read(self, shard: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (offset, seed, sample) in the order in which the reader returns the samples."""
        expected = None if self.data.sizes is None else self.data.sizes[shard]
        samples: Iterator[Any] | None = None
        for offset, hash_value in enumerate(_hash_stream(f"shard {shard}", self.seed, self.epoch)):
            seed = hash_value % SEED_LIMIT
            if self.seed_samples:
                seed_generators(seed)
            try:
                samples = iter(self.data.read(self.data.shards[shard])) if samples is None else samples
                sample = next(samples, END)
            except Exception as error:
                error.add_note(f"Raised while reading sample {offset} of {self.data.describe_shard(shard)}.")
                raise
            if expected is not None and (offset == expected) is not (sample is END):
                raise _size_mismatch(self.data.describe_shard(shard), expected, offset, ended=sample is END)
            if sample is END:
                return
            yield offset, seed, sample


def position_after(sizes: Sequence[int], samples: int) -> LanePosition:
    """Return the position in a lane after a number of samples.

    Args:
        sizes: number of samples in each shard of the lane.
        samples: number of samples that were read, at most the sum of ``sizes``.
    """
    ends = list(accumulate(sizes))
    shard = bisect_right(ends, samples)
    return LanePosition(shard, samples - ends[shard - 1] if shard else samples)


def split_round_robin(lengths: Sequence[int], samples: int) -> tuple[list[int], int]:
    """Return how many of the samples that were read round-robin came from each lane, and the index of the next lane.

    Args:
        lengths: number of samples in each lane; exhausted lanes are skipped.
        samples: number of samples that were read, at most the sum of ``lengths``.
    """

    def after_rounds(rounds: int) -> int:
        return sum(min(length, rounds) for length in lengths)

    rounds = bisect_right(range(max(lengths) + 1), samples, key=after_rounds) - 1
    counts = [min(length, rounds) for length in lengths]
    remaining = samples - sum(counts)
    next_lane = 0
    for lane, length in enumerate(lengths):
        if remaining and length > rounds:
            counts[lane] += 1
            remaining -= 1
            next_lane = lane + 1
    return counts, next_lane % len(lengths)


def _hash_stream(purpose: str, seed: int, epoch: int) -> Iterator[int]:
    """Yield the hashes of the positions 0, 1, 2, ... without end."""
    key = derive_keys(purpose, seed, epoch, 1)[0]
    for start, stop in pairwise(count(0, _BLOCK)):
        yield from hash_positions(np.arange(start, stop, dtype=np.uint64), key).tolist()


def _check_sizes(sizes: Sequence[int], shards: int) -> None:
    if len(sizes) != shards:
        raise InvalidData(f"There are {len(sizes)} sizes for {shards} shards.", fix="Give one size per shard.")
    if min(sizes) < 0 or not sum(sizes):
        raise InvalidData(f"sizes has minimum {min(sizes)} and sum {sum(sizes)}.", fix="Give numbers >= 0, not all 0.")


def _size_mismatch(name: str, expected: int, offset: int, *, ended: bool) -> InvalidData:
    actual = f"ended after {offset} samples" if ended else f"has more than {offset} samples"
    return InvalidData(
        f"{name[0].upper()}{name[1:]} {actual}, but sizes says {expected}.",
        why="Positions are computed from the sizes, so samples would be skipped or read twice.",
        fix="Correct sizes, or leave them out.",
    )
