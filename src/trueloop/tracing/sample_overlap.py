"""Compares the samples that loaders can return, without reading a sample, which could draw random numbers.

Each loader is compared with earlier ones at its first start, within a time limit. The samples are compared by their
indices in the innermost datasets, below Subsets and wrappers, or by the tables that the datasets have in memory.
"""

import weakref
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trueloop.tracing.events import JointlyStandardised, LoadersOverlap, Ref
from trueloop.tracing.stream import EventStream

MAX_LOADERS: Final = 8  # earlier loaders that a new one is compared with
MAX_SAMPLES: Final = 2_000_000  # samples compared by index, in 0.2 s
MAX_ROWS: Final = 250_000  # rows compared by content, in 0.1 s
MAX_VALUES: Final = 5_000_000  # values in a table whose mean is computed, in 0.05 s
MIN_FEATURES: Final = 8  # numbers in a row; shorter rows may be equal by chance, or by design (grid points, flags)
MAX_COLUMNS: Final = 64  # numbers of a row from which its hash is computed
MAX_COMPARED: Final = 64  # loaders of a run that are compared, for loops that create loaders without end
EMERGENCY_S: Final = 60.0  # seconds for all comparisons of a run, far beyond what was ever measured
ROUNDING: Final = 1e-5  # largest error of a standardised mean or deviation that float32 rounding explains
FULL_SAMPLERS: Final = (SequentialSampler, RandomSampler, WeightedRandomSampler, DistributedSampler)


class DatasetPart(NamedTuple):
    """Some samples of one dataset."""

    base: Any
    indices: Tensor | None
    """Distinct indices of the samples; None = all samples."""
    size: int


def dataset_parts(loader: Any) -> list[DatasetPart] | None:
    """Return the samples that a loader can return; None if they cannot be read from its sampler and dataset."""
    sampler = loader.sampler
    if loader.batch_sampler is not None:
        if type(loader.batch_sampler) is not BatchSampler:
            return None
        sampler = loader.batch_sampler.sampler
    if isinstance(loader.dataset, IterableDataset):
        return None
    chosen = None
    if type(sampler) is SubsetRandomSampler:
        chosen = _integers(sampler.indices)
        if chosen is None:
            return None
    elif type(sampler) not in FULL_SAMPLERS and not _shuffles_all(sampler, loader.dataset):
        return None
    return _parts(loader.dataset, chosen)


def _shuffles_all(sampler: Any, dataset: Any) -> bool:
    """Return True for a RandomSampler that returns all samples, also for a subclass made for seeding."""
    return isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == _size(dataset)


def _parts(dataset: Any, chosen: Tensor | None) -> list[DatasetPart] | None:
    if isinstance(dataset, ConcatDataset):
        return None if chosen is not None else [p for part in dataset.datasets for p in _parts(part, None) or ()]
    if isinstance(dataset, Subset):
        own = _integers(dataset.indices)
        if own is None:
            return None
        return _parts(dataset.dataset, own if chosen is None else own[chosen])
    inner = _wrapped(dataset)
    if inner is not None:
        return _parts(inner, chosen)
    size = _size(dataset)
    if not 0 < size <= MAX_SAMPLES:
        return None
    indices = None if chosen is None else chosen.where(chosen >= 0, chosen + size).unique()
    return [DatasetPart(dataset, indices, size if indices is None else len(indices))]


def _wrapped(dataset: Any) -> Any:
    """Return the dataset that a wrapper only transforms: its only attribute that is a dataset, of equal length."""
    if isinstance(dataset, TensorDataset):
        return None
    inner = [value for value in getattr(dataset, "__dict__", {}).values() if isinstance(value, Dataset)]
    return inner[0] if len(inner) == 1 and _size(inner[0]) == _size(dataset) else None


def _size(dataset: Any) -> int:
    return len(dataset) if hasattr(type(dataset), "__len__") else 0


def _integers(indices: Any) -> Tensor | None:
    if not hasattr(indices, "__len__") or not 0 < len(indices) <= MAX_SAMPLES:
        return None
    if isinstance(indices, Tensor):
        return indices.detach().to("cpu", torch.int64) if indices.device.type == "cpu" else None
    if hasattr(indices, "tolist"):  # numpy
        indices = indices.tolist()
    if isinstance(indices, range):
        return torch.arange(indices.start, indices.stop, indices.step, device="cpu")
    several = list(cast("Sequence[Any]", indices))
    if not all(isinstance(index, int) for index in several[:64]):
        several = [int(index) for index in several]
    return torch.tensor(several, dtype=torch.int64, device="cpu")


def in_memory_tables(dataset: Any) -> list[Tensor]:
    """Return the tables with one row per sample that a dataset has in memory."""
    if isinstance(dataset, TensorDataset):
        found: Sequence[Any] = dataset.tensors
    else:
        found = list(getattr(dataset, "__dict__", {}).values())
    size = _size(dataset)
    tables = [table for value in found if (table := _table(value)) is not None]
    return [table for table in tables if table.ndim and len(table) == size]


def _table(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        usable = value.device.type == "cpu" and value.layout == torch.strided and not value.is_complex()
        return value.detach() if usable else None
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.dtype.kind in "fiub":
        if value.dtype.str[1:] not in {"f4", "f8", "f2", "i8", "i4", "i2", "u1", "b1"} or not value.dtype.isnative:
            return None
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    return None


def row_digests(tables: Sequence[Tensor], indices: Tensor | None) -> Tensor | None:
    """Return one hash for each row; None if the rows are too short, or too many."""
    if not tables or len(tables[0]) > MAX_ROWS or sum(table[0].numel() for table in tables) < MIN_FEATURES:
        return None
    total = torch.zeros(len(tables[0]), dtype=torch.int64, device="cpu")
    state = 1
    for table in tables:
        flat = table.reshape(len(table), -1)
        step = max(1, -(-flat.shape[1] // MAX_COLUMNS))
        for column in flat[:, ::step].unbind(1):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            total += _bits(column) * (state - (1 << 63))
    return total if indices is None else total[indices]


def _bits(column: Tensor) -> Tensor:
    if column.is_floating_point():
        # In float64 equal numbers have equal bits, whatever type they had. Numbers such as n / 16 or integers, as in
        # images, set only the highest bits, and so would their product with the state: the xor copies the high bits
        # into the low ones.
        bits = column.double().contiguous().view(torch.int64)
        return bits ^ (bits >> 32)
    return column.long()


class _KnownLoader(NamedTuple):
    loader: weakref.ref[Any]
    ref: Ref


class LoaderComparison:
    """Compares every loader with the earlier ones, once, when it starts for the first time."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._known: list[_KnownLoader] = []
        self._subsets: list[weakref.ref[Any]] = []
        self._compared, self._spent_s = 0, 0.0

    def on_subset_created(self, subset: Any) -> None:
        """Record a new Subset."""
        self._subsets = [*(each for each in self._subsets[-63:] if each() is not None), weakref.ref(subset)]

    def on_loader_started(self, loader: Any, ref: Ref) -> None:
        """Compare a loader with the earlier ones, and emit what they share, unless the time limit is exceeded."""
        start = perf_counter()
        self._known = [each for each in self._known[-MAX_LOADERS:] if each.loader() is not None]
        earlier_loaders = list(self._known)
        self._known.append(_KnownLoader(weakref.ref(loader), ref))
        self._compared += 1
        if self._compared > MAX_COMPARED or self._spent_s > EMERGENCY_S:
            return
        own_parts = dataset_parts(loader)
        if own_parts:
            earlier = [(each.ref, parts) for each in earlier_loaders if (parts := dataset_parts(each.loader()))]
            for earlier_ref, parts in earlier:
                self._compare(earlier_ref, parts, ref, own_parts)
            self._check_scaling([*earlier, (ref, own_parts)])
        self._spent_s += perf_counter() - start

    def _compare(
        self, earlier: Ref, earlier_parts: list[DatasetPart], later: Ref, later_parts: list[DatasetPart]
    ) -> None:
        shared, matched_by, duplicates = _shared_by_index(earlier_parts, later_parts), "index", 0
        if shared is None and len(earlier_parts) == len(later_parts) == 1:
            matched_by = "content"
            shared, duplicates = _shared_by_content(earlier_parts[0], later_parts[0])
        if shared:
            self._stream.emit(LoadersOverlap(
                earlier=earlier, later=later, matched_by=matched_by, shared=shared, duplicates=duplicates,
                earlier_size=sum(part.size for part in earlier_parts),
                later_size=sum(part.size for part in later_parts),
                remainder=self._find_remainder(earlier_parts, later_parts),
            ))  # fmt: skip

    def _find_remainder(self, earlier: list[DatasetPart], later: list[DatasetPart]) -> Ref | None:
        """Return the Subset with the larger loader's other samples, if the smaller loader has a part of its samples."""
        small, large = sorted((earlier, later), key=lambda parts: sum(part.size for part in parts))
        if len(small) != 1 or len(large) != 1 or large[0].indices is not None or small[0].indices is None:
            return None
        base, small_indices = large[0].base, small[0].indices
        for reference in self._subsets:
            subset = reference()
            if subset is None or subset.dataset is not base:
                continue
            indices = _integers(subset.indices)
            if indices is None or len(indices) + small[0].size != large[0].size:
                continue
            if not torch.isin(indices, small_indices).any():
                return self._stream.registry.ref(subset)
        return None

    def _check_scaling(self, loaders: list[tuple[Ref, list[DatasetPart]]]) -> None:
        single = [(ref, parts[0]) for ref, parts in loaders if len(parts) == 1]
        moments = {
            id(base): _column_moments(base) for base in {id(part.base): part.base for _, part in single}.values()
        }
        for bases in _groups([id(part.base) for _, part in single]):
            tables = [table for base in bases if (table := moments[base]) is not None]
            is_complete = bool(tables) and len(tables) == len(bases)
            if len(tables) > 1 and any(_joint_samples([table]) or bool(table.is_integer.all()) for table in tables):
                continue  # a table that is standardised on its own proves nothing about the others
            samples = _joint_samples(tables) if is_complete else None
            if samples is None:
                continue
            group = [(ref, part) for ref, part in single if id(part.base) in bases]
            if len(group) > 1:
                self._stream.emit(JointlyStandardised(
                    loaders=tuple(ref for ref, _ in group), samples=samples,
                    mean_offsets=tuple(_mean_offset(part) for _, part in group),
                ))  # fmt: skip
            return


def _groups(bases: list[int]) -> Iterator[set[int]]:
    """Yield groups of datasets that may be parts of the same data.

    The groups are the latest alone, the latest with one earlier dataset, and the latest three, four ... together.
    """
    if bases:
        yield {bases[-1]}
        yield from ({base, bases[-1]} for base in bases[:-1])
        yield from (set(bases[-n:]) for n in range(3, len(bases) + 1))


def _shared_by_index(earlier: list[DatasetPart], later: list[DatasetPart]) -> int | None:
    """Return the number of samples in both; None without a common dataset."""
    pairs = [(first, second) for first in earlier for second in later if first.base is second.base]
    if not pairs:
        return None
    shared = 0
    for first, second in pairs:
        if first.indices is None or second.indices is None:
            shared += min(first.size, second.size)
        else:
            shared += int(torch.isin(second.indices, first.indices).sum())
    return shared


def _shared_by_content(earlier: DatasetPart, later: DatasetPart) -> tuple[int, int]:
    """Return the number of later samples that equal an earlier one, and of samples that repeat within their part."""
    if type(earlier.base) is not type(later.base):
        return 0, 0
    tables = in_memory_tables(earlier.base), in_memory_tables(later.base)
    shapes = [[(table.shape[1:], table.dtype) for table in each] for each in tables]
    if shapes[0] != shapes[1]:
        return 0, 0
    earlier_rows, later_rows = row_digests(tables[0], earlier.indices), row_digests(tables[1], later.indices)
    if earlier_rows is None or later_rows is None:
        return 0, 0
    is_shared = torch.isin(later_rows, earlier_rows)
    shared = int(is_shared.sum())
    if shared and not _rows_are_equal(tables, (earlier, later), (earlier_rows, later_rows), is_shared):
        return 0, 0
    return shared, sum(len(rows) - len(rows.unique()) for rows in (earlier_rows, later_rows))


def _rows_are_equal(
    tables: tuple[list[Tensor], list[Tensor]],
    parts: tuple[DatasetPart, DatasetPart],
    rows: tuple[Tensor, Tensor],
    is_shared: Tensor,
) -> bool:
    """Compare a few rows with equal hashes in full, since a hash covers only some of their numbers."""
    for second in is_shared.nonzero().flatten()[:: max(1, int(is_shared.sum()) // 16)].tolist():
        first = int((rows[0] == rows[1][second]).nonzero()[0])
        indices = [
            position if part.indices is None else int(part.indices[position])
            for part, position in zip(parts, (first, second), strict=True)
        ]
        if not all(torch.equal(a[indices[0]], b[indices[1]]) for a, b in zip(*tables, strict=True)):
            return False
    return True


def _inputs(base: Any) -> Tensor | None:
    """Return the first float table with more than one feature, which is the model's input."""
    for table in in_memory_tables(base):
        if table.is_floating_point() and table.ndim > 1 and 1 < table.numel() <= MAX_VALUES:
            return table.reshape(len(table), -1)
    return None


class _Moments(NamedTuple):
    """Number of rows in a table; for each feature its sum, its sum of squares, and whether all values are integers."""

    rows: int
    total: Tensor
    squares: Tensor
    is_integer: Tensor


def _column_moments(base: Any) -> _Moments | None:
    table = _inputs(base)
    if table is None:
        return None
    numbers = table.double()
    return _Moments(len(table), numbers.sum(0), numbers.square().sum(0), (table == table.round()).all(0))


def _joint_samples(tables: Sequence[_Moments]) -> int | None:
    """Return the number of samples if the joined tables are exactly standardised, else None."""
    if len({len(table.total) for table in tables}) != 1:
        return None
    rows, features = sum(table.rows for table in tables), len(tables[0].total)
    is_integer = torch.stack([table.is_integer for table in tables]).all(0)
    total = torch.stack([table.total for table in tables]).sum(0)
    squares = torch.stack([table.squares for table in tables]).sum(0)
    if rows < 32 or bool(is_integer.all()):  # integers may have mean 0 and deviation 1 by design, such as +1 and -1
        return None
    by_feature = _is_standardised(rows, total, squares)
    standardised = by_feature or _is_standardised(rows * features, total.sum().reshape(1), squares.sum().reshape(1))
    return rows if standardised else None


def _is_standardised(n: int, total: Tensor, squares: Tensor) -> bool:
    """Return True if every varying feature has mean 0 and standard deviation 1, with divisor n or n - 1."""
    mean = total / n
    deviation = (squares / n - mean.square()).clamp_min(0).sqrt()
    varies = deviation > 1e-6
    mean, deviation = mean[varies].abs(), deviation[varies]
    if not len(mean) or not bool(deviation.isfinite().all()):
        return False
    scaled = any(float((deviation * factor - 1).abs().max()) < ROUNDING for factor in (1.0, (n / (n - 1)) ** 0.5))
    return scaled and float(mean.max()) < ROUNDING


def _mean_offset(part: DatasetPart) -> float:
    table = _inputs(part.base)
    if table is None:
        return 0.0
    rows = table if part.indices is None else table[part.indices]
    return float(rows.double().mean(0).square().mean().sqrt())
