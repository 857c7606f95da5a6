"""What is remembered of one pass over a DataLoader: numbers, never a sample."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, cast

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import Ref
from trueloop.tracing.patch import HIDDEN_FILE

ENOUGH: Final = 256  # indices that tell one order from another; 256! orders are possible
MOST_VALUES: Final = 4096  # different labels
MOST_COLUMNS: Final = 8
DEEP: Final = 4  # lists and dictionaries within each other, in a batch


class FirstIndices:
    """The beginning of the order of one epoch, as indices into the dataset."""

    def __init__(self) -> None:
        self._indices: list[int] = []
        self.batches = 0
        self.complete = False
        """Nothing more is wanted."""

    def add(self, indices: Any) -> None:
        """Take in what the sampler gave for one batch: an index or several."""
        several = cast("Sequence[Any]", indices if isinstance(indices, list | tuple) else [indices])
        if set(map(type, several)) != {int}:
            self._indices.clear()
            self.complete = True  # keys, tensors, pairs: not an order we can compare
            return
        self._indices += several
        self.batches += 1
        self.complete = len(self._indices) >= ENOUGH and self.batches > 1

    @property
    def count(self) -> int:
        """How many are known."""
        return len(self._indices)

    @property
    def distinct(self) -> int:
        """How many different ones."""
        return len(set(self._indices))

    @property
    def digest(self) -> int:
        """One number for the order; no two orders share it but by an accident of 64 bits."""
        return hash(tuple(self._indices))


@dataclass(slots=True)
class _Column:
    value: float | None = None
    length: int = 0
    shortest: int = 1 << 62
    ended: set[float] = field(default_factory=set[float])

    def add(self, values: Iterable[float]) -> bool:
        """Go on with the next values; False = a block that had ended came again, or there are too many."""
        for value in values:
            if value == self.value:
                self.length += 1
                continue
            if value in self.ended or len(self.ended) > MOST_VALUES or value != int(value):
                return False
            self._end()
            self.value, self.length = value, 1
        return True

    def _end(self) -> None:
        if self.value is not None:
            self.ended.add(self.value)
            self.shortest = min(self.shortest, self.length)

    def close(self) -> tuple[int, int]:
        """Return how many different values there were, and the length of the shortest block."""
        self._end()
        return len(self.ended), self.shortest


class LabelBlocks:
    """Which columns of the batches come in blocks of equal whole numbers, as classes in a dataset sorted by class.

    In shuffled data a value comes again within the first batch, and nothing more is looked at: the cost is that of one
    small list. In sorted data it is 5 us per batch, in one epoch.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Column] | None = None
        self.samples = 0
        self.batch_size = 0
        self.in_time = False
        self._growing: Tensor | None = None

    @property
    def over(self) -> bool:
        """No column is left that could come in blocks."""
        return self._columns is not None and not self._columns

    def add(self, batch: Any) -> None:
        """Take in one batch."""
        parts = dict(columns(batch))
        if self._columns is None:
            self._columns = {name: _Column() for name, part in parts.items() if _may_be_labels(part)}
            self.batch_size = max((len(parts[name]) for name in self._columns), default=0)
            self.in_time = any(map(_sliding, parts.values()))
        for name, column in list(self._columns.items()):
            part = parts.get(name)
            if part is None or not _may_be_labels(part) or not column.add(part.detach().flatten().tolist()):
                del self._columns[name]
        if self._columns:
            self.samples += len(parts[next(iter(self._columns))])
            self._look_for_time(parts)

    def found(self) -> Iterator[tuple[str, int, int]]:
        """Yield for each such column its name, how many values it had, and the shortest block, at the epoch's end."""
        for name, column in (self._columns or {}).items():
            values, shortest = column.close()
            if values > 1:
                yield name, values, shortest

    def _look_for_time(self, parts: Mapping[str, Tensor]) -> None:
        """Drop every feature that does not grow, or fall, from each sample to the next; what is left is a clock."""
        tables = [part for part in parts.values() if part.ndim == 2 and part.shape[1] > 1 and part.is_floating_point()]
        if not tables or len(tables[0]) < 2 or (self._growing is not None and not self._growing.any()):
            return
        steps = tables[0].detach().diff(dim=0)
        growing = (steps > 0).all(0) | (steps < 0).all(0)
        same = self._growing is not None and self._growing.shape == growing.shape
        self._growing = growing & self._growing if same and self._growing is not None else growing

    @property
    def follows_a_clock(self) -> bool:
        """The samples look like a series in time."""
        return self.in_time or (self._growing is not None and bool(self._growing.any()))


class WorkerCopies:
    """Whether the workers of a loader over a stream all begin with the same batch.

    Args:
        workers: of the loader; each gives one of its first batches.

    Cost: as much as looking at each number of ``workers`` + 1 batches once.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._first = 0
        self._seen = 0
        self.samples = 0
        self.over = False
        """Nothing more is wanted."""
        self.found = False

    def add(self, batch: Any) -> None:
        """Take in one batch."""
        digest = _digest(batch, DEEP)
        if not self._seen:
            self._first, self.samples = digest, _length(batch)
        same = digest == self._first
        self._seen += 1
        last = self._seen > self._workers
        self.found = last and not same  # a stream of one batch for ever proves nothing
        self.over = last or not same


def _digest(part: Any, depth: int) -> int:
    """Return one number for what is in a batch; equal for equal numbers and words."""
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


def _length(batch: Any) -> int:
    return max((len(part) for _, part in columns(batch)), default=1)


def columns(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a batch that lie on the CPU, with their places in it: "0", "1", "label"."""
    if isinstance(batch, Mapping):
        pairs = list(cast("Mapping[Any, Any]", batch).items())
    else:
        pairs = list(enumerate(cast("Sequence[Any]", batch))) if isinstance(batch, list | tuple) else [(0, batch)]
    for name, part in pairs[:MOST_COLUMNS]:
        if isinstance(part, Tensor) and part.device.type == "cpu" and part.layout == torch.strided and part.ndim:
            yield str(name), part


def _may_be_labels(part: Tensor) -> bool:
    return len(part) > 1 and part.numel() == len(part) and not part.is_complex()


def _sliding(part: Tensor) -> bool:
    """True where the second and third sample each begin within the one before: windows cut from one series."""
    if part.ndim < 2 or len(part) < 3 or not 8 <= part.shape[1] <= 512:
        return False
    first, second, third = part[:3].detach()
    for shift in range(1, part.shape[1] - 4):
        common = first[shift:]
        if torch.equal(common, second[:-shift]) and torch.equal(second[shift:], third[:-shift]):
            return bool((common != common[:1]).any())
    return False


@dataclass(slots=True)
class LoaderPass:
    """One pass over a loader, from ``iter`` to its end or to a ``break``."""

    loader: Ref
    dataset: Ref | None
    epoch: int
    backward_count_at_start: int
    sampler: str = ""
    shuffles: bool | None = None
    workers: int = 0
    made_at: CodePosition | None = None
    place: CodePosition | None = None
    """Where the iterator was asked for."""
    seeded_at: CodePosition | None = None
    """The latest ``torch.manual_seed`` before it, since the pass of a shuffling loader before."""
    distributed: Any = None
    """The DistributedSampler that shuffles it, until its first batch is drawn."""
    index: int = 0
    """Batches drawn."""
    length: int | None = None
    """Batches there are, where torch's own samplers tell."""
    first_s: float = 0.0
    """When the first batch was there."""
    wait_s: float = 0.0
    order: FirstIndices | None = None
    blocks: LabelBlocks | None = None
    copies: WorkerCopies | None = None
    looked_at: bool = False
    """For one of these two each batch is looked at, also where the run is not watched in full."""
    ended: bool = False


def current_loader_pass() -> LoaderPass | None:
    """Return the pass over a loader that is just fetching a batch on this thread.

    It is looked for on the stack, of which only who asks has the cost: batches are drawn far more often.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        if code.co_filename == HIDDEN_FILE and code.co_name == "__next__":
            return frame.f_locals.get("current")
        frame = frame.f_back
    return None
