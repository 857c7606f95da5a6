"""Records numbers about one pass over a DataLoader: its sample order, sorted labels, and copied workers."""

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

MIN_INDICES: Final = 256  # indices that are enough to identify an order
MAX_LABELS: Final = 4096  # distinct labels
MAX_COLUMNS: Final = 8
MAX_DEPTH: Final = 4  # levels of nested lists and dictionaries in a batch


class FirstIndices:
    """The first indices of one epoch."""

    def __init__(self) -> None:
        self._indices: list[int] = []
        self.batches = 0
        self.complete = False
        """Whether enough indices are known, or the sampler returns none that can be compared."""

    def add(self, indices: Any) -> None:
        """Add the sampler's indices of one batch: an index, or a list of them."""
        several = cast("Sequence[Any]", indices if isinstance(indices, list | tuple) else [indices])
        if set(map(type, several)) != {int}:
            self._indices.clear()
            self.complete = True  # keys, tensors or pairs, which are not compared
            return
        self._indices += several
        self.batches += 1
        self.complete = len(self._indices) >= MIN_INDICES and self.batches > 1

    @property
    def count(self) -> int:
        """Number of known indices."""
        return len(self._indices)

    @property
    def distinct(self) -> int:
        """Number of distinct indices."""
        return len(set(self._indices))

    @property
    def digest(self) -> int:
        """A 64-bit hash of the order."""
        return hash(tuple(self._indices))


@dataclass(slots=True)
class _Column:
    value: float | None = None
    length: int = 0
    shortest: int = 1 << 62
    ended: set[float] = field(default_factory=set[float])

    def add(self, values: Iterable[float]) -> bool:
        """Add values; return False if one occurred before the previous block, or there are too many distinct values."""
        for value in values:
            if value == self.value:
                self.length += 1
                continue
            if value in self.ended or len(self.ended) > MAX_LABELS or value != int(value):
                return False
            self._end()
            self.value, self.length = value, 1
        return True

    def _end(self) -> None:
        if self.value is not None:
            self.ended.add(self.value)
            self.shortest = min(self.shortest, self.length)

    def close(self) -> tuple[int, int]:
        """Return the number of distinct values and the length of the shortest block."""
        self._end()
        return len(self.ended), self.shortest


class LabelBlocks:
    """Detects columns of integers where equal values follow each other, as the labels in a dataset sorted by class.

    In shuffled data a value reappears within the first batch, and no more batches are checked: the cost is one small
    list. In sorted data the cost is 5 us per batch, in one epoch.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Column] | None = None
        self.samples = 0
        self.batch_size = 0
        self.overlapping = False
        self._monotonic: Tensor | None = None

    @property
    def finished(self) -> bool:
        """Whether no column is sorted so far, so that the rest need not be checked."""
        return self._columns is not None and not self._columns

    def add(self, batch: Any) -> None:
        """Add one batch."""
        parts = dict(columns(batch))
        if self._columns is None:
            self._columns = {name: _Column() for name, part in parts.items() if _may_be_labels(part)}
            self.batch_size = max((len(parts[name]) for name in self._columns), default=0)
            self.overlapping = any(map(_is_overlapping, parts.values()))
        for name, column in list(self._columns.items()):
            part = parts.get(name)
            if part is None or not _may_be_labels(part) or not column.add(part.detach().flatten().tolist()):
                del self._columns[name]
        if self._columns:
            self.samples += len(parts[next(iter(self._columns))])
            self._check_monotonic(parts)

    def sorted_columns(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name, number of distinct values and smallest block of each sorted column, at the epoch's end."""
        for name, column in (self._columns or {}).items():
            values, shortest = column.close()
            if values > 1:
                yield name, values, shortest

    def _check_monotonic(self, parts: Mapping[str, Tensor]) -> None:
        """Record which features are monotonic over all samples so far, as a time stamp is."""
        tables = [part for part in parts.values() if part.ndim == 2 and part.shape[1] > 1 and part.is_floating_point()]
        if not tables or len(tables[0]) < 2 or (self._monotonic is not None and not self._monotonic.any()):
            return
        steps = tables[0].detach().diff(dim=0)
        monotonic = (steps > 0).all(0) | (steps < 0).all(0)
        same = self._monotonic is not None and self._monotonic.shape == monotonic.shape
        self._monotonic = monotonic & self._monotonic if same and self._monotonic is not None else monotonic

    @property
    def looks_like_time_series(self) -> bool:
        """Whether the samples look like a time series."""
        return self.overlapping or (self._monotonic is not None and bool(self._monotonic.any()))


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

    def add(self, batch: Any) -> None:
        """Add one batch."""
        digest = _digest(batch, MAX_DEPTH)
        if not self._batches:
            self._first_digest, self.samples = digest, _length(batch)
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


def _length(batch: Any) -> int:
    return max((len(part) for _, part in columns(batch)), default=1)


def columns(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the CPU tensors of a batch with their keys: "0", "1", "label"."""
    if isinstance(batch, Mapping):
        pairs = list(cast("Mapping[Any, Any]", batch).items())
    else:
        pairs = list(enumerate(cast("Sequence[Any]", batch))) if isinstance(batch, list | tuple) else [(0, batch)]
    for name, part in pairs[:MAX_COLUMNS]:
        if isinstance(part, Tensor) and part.device.type == "cpu" and part.layout == torch.strided and part.ndim:
            yield str(name), part


def _may_be_labels(part: Tensor) -> bool:
    return len(part) > 1 and part.numel() == len(part) and not part.is_complex()


def _is_overlapping(part: Tensor) -> bool:
    """Return True if the samples are overlapping windows of one series."""
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
    location: CodePosition | None = None
    """Where the iterator was created."""
    seeded_at: CodePosition | None = None
    """The latest ``torch.manual_seed`` since the previous pass of a shuffling loader."""
    distributed: Any = None
    """The DistributedSampler that shuffles the pass; None after the first batch."""
    index: int = 0
    """Number of batches returned."""
    length: int | None = None
    """Number of batches in the pass, for PyTorch's own samplers."""
    first_s: float = 0.0
    """Time of the first batch."""
    wait_s: float = 0.0
    order: FirstIndices | None = None
    blocks: LabelBlocks | None = None
    copies: WorkerCopies | None = None
    inspect_batches: bool = False
    """Whether each batch is added to ``blocks`` or ``copies``, also in sampled tracing."""
    ended: bool = False


def current_loader_pass() -> LoaderPass | None:
    """Return the pass over a loader that is fetching a batch on this thread.

    The pass is searched on the stack, so that batches, which are far more frequent than calls of this, have no cost.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        if code.co_filename == HIDDEN_FILE and code.co_name == "__next__":
            return frame.f_locals.get("current")
        frame = frame.f_back
    return None
