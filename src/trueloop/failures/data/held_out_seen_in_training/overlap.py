"""Counts the samples that two loaders share, by their indices, or by the tables that the datasets have in memory."""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.tracing.events import Ref
from trueloop.tracing.trackers.loader_samples import DatasetPart, LoaderSamples, in_memory_tables, integers

MAX_ROWS: Final = 250_000  # rows compared by content, in 0.1 s
MIN_FEATURES: Final = 8  # numbers in a row; shorter rows may be equal by chance, or by design (grid points, flags)
MAX_COLUMNS: Final = 64  # numbers of a row from which its hash is computed


class Overlap(NamedTuple):
    """The samples that two loaders share."""

    earlier: Ref
    later: Ref
    matched_by: str
    """"index": the same samples of one dataset; "content": equal samples in two datasets."""
    shared: int
    """Number of samples of the later loader that the earlier one can return too."""
    earlier_size: int
    later_size: int
    duplicates: int
    """Number of samples that repeat another of the same loader, in both loaders; 0 if matched by index."""
    remainder: Ref | None
    """A Subset of exactly the samples that only the larger loader has."""


def find_overlap(
    earlier: LoaderSamples, later: LoaderSamples, subsets: Iterable[tuple[weakref.ref[Any], Ref]]
) -> Overlap | None:
    """Return the samples that two loaders share; None if there are none. Subsets may be the unused part of a split."""
    shared, matched_by, duplicates = _shared_by_index(earlier.parts, later.parts), "index", 0
    if shared is None and len(earlier.parts) == len(later.parts) == 1:
        matched_by = "content"
        shared, duplicates = _shared_by_content(earlier.parts[0], later.parts[0])
    if not shared:
        return None
    remainder = _find_remainder(earlier, later, subsets)
    return Overlap(earlier.loader, later.loader, matched_by, shared, earlier.size, later.size, duplicates, remainder)


def _find_remainder(
    earlier: LoaderSamples, later: LoaderSamples, subsets: Iterable[tuple[weakref.ref[Any], Ref]]
) -> Ref | None:
    """Return the Subset with the larger loader's other samples, if the smaller loader has a part of its samples."""
    small, large = sorted((earlier, later), key=lambda samples: samples.size)
    if len(small.parts) != 1 or len(large.parts) != 1:
        return None
    base, small_indices = large.parts[0].base, small.parts[0].indices
    if large.parts[0].indices is not None or small_indices is None:
        return None
    for reference, ref in subsets:
        subset = reference()
        if subset is None or subset.dataset is not base:
            continue
        indices = integers(subset.indices)
        if indices is None or len(indices) + small.size != large.size:
            continue
        if not torch.isin(indices, small_indices).any():
            return ref
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
