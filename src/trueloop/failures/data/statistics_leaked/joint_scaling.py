"""Finds loaders whose joined inputs are standardised: every feature has exactly mean 0 and standard deviation 1."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.tracing.events import Ref
from trueloop.tracing.trackers.loader_samples import DatasetPart, LoaderSamples, in_memory_tables

MAX_VALUES: Final = 5_000_000  # values in a table whose mean is computed, in 0.05 s
ROUNDING: Final = 1e-5  # largest error of a standardised mean or deviation that float32 rounding explains


class JointScaling(NamedTuple):
    """Loaders whose joined inputs are exactly standardised."""

    samples: int
    mean_offsets: dict[Ref, float]
    """Loader -> root mean square, over the features, of the mean of its own samples."""


def find_joint_scaling(loaders: Sequence[LoaderSamples]) -> JointScaling | None:
    """Return the loaders that were standardised together with the latest one; None if there are none.

    Args:
        loaders: the samples of several loaders, the latest last.
    """
    single = [(each.loader, each.parts[0]) for each in loaders if len(each.parts) == 1]
    moments = {id(base): _column_moments(base) for base in {id(part.base): part.base for _, part in single}.values()}
    for bases in _groups([id(part.base) for _, part in single]):
        tables = [table for base in bases if (table := moments[base]) is not None]
        is_complete = bool(tables) and len(tables) == len(bases)
        if len(tables) > 1 and any(_joint_samples([table]) or bool(table.is_integer.all()) for table in tables):
            continue  # a table that is standardised on its own proves nothing about the others
        samples = _joint_samples(tables) if is_complete else None
        if samples is None:
            continue
        group = [(ref, part) for ref, part in single if id(part.base) in bases]
        return JointScaling(samples, {ref: _mean_offset(part) for ref, part in group}) if len(group) > 1 else None
    return None


def _groups(bases: list[int]) -> Iterator[set[int]]:
    """Yield groups of datasets that may be parts of the same data.

    The groups are the latest alone, the latest with one earlier dataset, and the latest three, four ... together.
    """
    if bases:
        yield {bases[-1]}
        yield from ({base, bases[-1]} for base in bases[:-1])
        yield from (set(bases[-n:]) for n in range(3, len(bases) + 1))


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
