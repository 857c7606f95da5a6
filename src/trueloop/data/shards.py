"""Data that comes in shards: what they are, in which order an epoch reads them, and the samples of one after another.

An epoch deals its shards, shuffled, to L lanes like cards; a lane reads its shards one after another. Everything
random is a hash of (seed, epoch, shard, place), so a lane can be taken up anywhere without a generator's state.
"""

from __future__ import annotations

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
_BLOCK = 256  # hashes computed at a time: 20 us, where one alone would cost 5


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shards:
    """A dataset that is read from start to end, in pieces: files, archives, tables, any iterables.

    Every sample is seen once per epoch. The shards come in another order each epoch, several are read side by side,
    and the samples of each pass through a shuffle buffer; at most ``interleave * buffer`` samples are held. A run that
    was stopped continues at the very next sample: where ``sizes`` are given no earlier shard is opened, otherwise the
    position is saved with the run; either way only the shards in hand are read again from their start.

    Example:
        ``Shards(sorted(Path("data").glob("*.jsonl")), read_lines)``; ``Shards([iterable_dataset], iter)``
    """

    shards: Sequence[Any]
    """What ``read`` is given, one at a time: paths, URLs, numbers, iterables."""
    read: Callable[[Any], Iterable[Any]]
    """Shard -> its samples, the same ones in the same order every time, apart from random augmentation."""
    _: KW_ONLY
    sizes: Sequence[int] | None = None
    """Samples in each shard; None = unknown until read, and then so is the length of an epoch."""
    interleave: int = 4
    """L: shards read side by side, one sample from each in turn. Part of the order; it also bounds how many worker
    processes can help, and a multiple of the training processes lets each of them read its own shards only."""
    buffer: int = 256
    """Samples of one shard among which the next one is drawn; 0 = as they lie in the shard."""

    def __post_init__(self) -> None:
        if isinstance(self.shards, (str, bytes)) or not isinstance(self.shards, Sequence) or not len(self.shards):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidData(
                f"The shards are {self.shards!r}.",
                fix='Give a list with at least one: sorted(Path("data").glob("*.jsonl")).',
            )
        if not callable(self.read):
            raise InvalidData(
                f"The reader is a {type(self.read).__name__}.", fix="Give a function: shard -> its samples."
            )
        if self.interleave < 1:
            raise InvalidConfig(f"interleave is {self.interleave}.", fix="At least one shard is read at a time.")
        if self.buffer < 0:
            raise InvalidConfig(f"buffer is {self.buffer}.", fix="Give 0 or more samples.")
        if self.sizes is not None:
            _check_sizes(self.sizes, len(self.shards))

    @property
    def size(self) -> int | None:
        """Samples in all shards together; None where unknown."""
        return None if self.sizes is None else sum(self.sizes)

    def describe_shard(self, shard: int) -> str:
        """Say which shard it is: "shard 3 ('train-3.jsonl')"."""
        given = self.shards[shard]
        return f"shard {shard} ({str(given) if isinstance(given, PurePath) else given!r})"


class LanePosition(NamedTuple):
    """How far a lane is."""

    shard: int
    """Shards of the lane that are behind it."""
    offset: int
    """Samples of the next one that are."""


class ShardSample(NamedTuple):
    """One sample, and where it comes from."""

    data: Any
    shard: int
    """Its shard, as numbered in `Shards.shards`."""
    offset: int
    """Its place within the shard, as read."""
    seed: int
    """What the generators were started with when it was read."""
    after: LanePosition
    """Where its lane is once this sample is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEpoch:
    """One epoch over shards: a function of these fields and nothing else."""

    data: Shards
    seed: int
    epoch: int
    shuffle: bool
    """False: the shards as given, one after another, each as it lies."""
    seed_samples: bool
    """Start the global generators before each sample is read."""

    @property
    def lanes(self) -> list[list[int]]:
        """The shards of each lane, in the order they are read."""
        total = len(self.data.shards)
        if not self.shuffle:
            return [list(range(total))]
        ordered = order(total, self.seed, self.epoch).take(0, total).tolist()
        width = min(self.data.interleave, total)
        return [ordered[lane::width] for lane in range(width)]

    def samples(self, lane: Sequence[int], start: LanePosition) -> Iterator[ShardSample]:
        """Read one lane from a place on. The global generators are not put back: that is up to who asks.

        Args:
            lane: its shards.
            start: no shard before it is opened; those of its own shard that are passed are read and dropped.

        Raises:
            InvalidData: a shard does not hold as many samples as ``sizes`` says; and whatever the reader raises.
        """
        for place in range(start.shard, len(lane)):
            passed = start.offset if place == start.shard else 0
            for taken, (offset, seed, sample) in enumerate(self._read_shuffled(lane[place]), 1):
                if taken > passed:
                    yield ShardSample(sample, lane[place], offset, seed, LanePosition(place, taken))

    def _read_shuffled(self, shard: int) -> Iterator[tuple[int, int, Any]]:
        size = self.data.buffer if self.shuffle else 0
        if size == 0:
            yield from self._read(shard)
            return
        draws = _hash_stream(f"buffer {shard}", self.seed, self.epoch)
        held: list[tuple[int, int, Any]] = []
        for sample in self._read(shard):
            if len(held) < size:
                held.append(sample)
                continue
            place = next(draws) % size
            yield held[place]
            held[place] = sample
        while held:
            place = next(draws) % len(held)
            held[place], held[-1] = held[-1], held[place]
            yield held.pop()

    def _read(self, shard: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (offset, seed, sample) as they lie in the shard."""
        expected = None if self.data.sizes is None else self.data.sizes[shard]
        samples: Iterator[Any] | None = None
        for offset, word in enumerate(_hash_stream(f"shard {shard}", self.seed, self.epoch)):
            seed = word % SEED_LIMIT
            if self.seed_samples:
                seed_generators(seed)
            try:
                samples = iter(self.data.read(self.data.shards[shard])) if samples is None else samples
                sample = next(samples, END)
            except Exception as error:
                error.add_note(f"This happened while reading sample {offset} of {self.data.describe_shard(shard)}.")
                raise
            if expected is not None and (offset == expected) is not (sample is END):
                raise _size_mismatch(self.data.describe_shard(shard), expected, offset, ended=sample is END)
            if sample is END:
                return
            yield offset, seed, sample


def position_after(sizes: Sequence[int], passed: int) -> LanePosition:
    """Find the place in a lane past a number of samples.

    Args:
        sizes: of the lane's shards.
        passed: samples behind it, at most their sum.
    """
    ends = list(accumulate(sizes))
    shard = bisect_right(ends, passed)
    return LanePosition(shard, passed - ends[shard - 1] if shard else passed)


def split_round_robin(lengths: Sequence[int], passed: int) -> tuple[list[int], int]:
    """Tell how many samples each lane has given when ``passed`` were drawn in turn, and whose turn it is then.

    Args:
        lengths: samples in each lane; a lane that has no more is left out of the round.
        passed: at most their sum.
    """

    def after_rounds(rounds: int) -> int:
        return sum(min(length, rounds) for length in lengths)

    rounds = bisect_right(range(max(lengths) + 1), passed, key=after_rounds) - 1
    counts = [min(length, rounds) for length in lengths]
    rest = passed - sum(counts)
    turn = 0
    for lane, length in enumerate(lengths):
        if rest and length > rounds:
            counts[lane] += 1
            rest -= 1
            turn = lane + 1
    return counts, turn % len(lengths)


def _hash_stream(purpose: str, seed: int, epoch: int) -> Iterator[int]:
    """Yield one hash after the other for the places 0, 1, 2, ..."""
    key = derive_keys(purpose, seed, epoch, 1)[0]
    for start, stop in pairwise(count(0, _BLOCK)):
        yield from hash_positions(np.arange(start, stop, dtype=np.uint64), key).tolist()


def _check_sizes(sizes: Sequence[int], shards: int) -> None:
    if len(sizes) != shards:
        raise InvalidData(f"There are {len(sizes)} sizes for {shards} shards.", fix="Give one size per shard.")
    if min(sizes) < 0 or not sum(sizes):
        raise InvalidData(f"The smallest shard has {min(sizes)} samples, all together {sum(sizes)}.", fix="Give data.")


def _size_mismatch(name: str, expected: int, offset: int, *, ended: bool) -> InvalidData:
    found = f"ended after {offset} samples" if ended else f"has more than {offset} samples"
    return InvalidData(
        f"{name[0].upper()}{name[1:]} {found}; sizes says {expected}.",
        why="Positions are computed from the sizes, so samples would be left out or read twice.",
        fix="Correct sizes, or leave them out.",
    )
