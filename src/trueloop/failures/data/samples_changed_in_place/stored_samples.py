"""Compares stored samples with themselves: arrays of datasets, and arrays in the variables of the program."""

import math
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from trueloop.failures.data.samples_changed_in_place import ROWS
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.running_code import program_stack
from trueloop.tracing.user_location import is_user_code

MIN_ROWS: Final = 8  # of them that change in the same way
MIN_SAMPLES: Final = 64  # in an array; shorter ones may be batches
MAX_COLUMNS: Final = 256  # numbers of a sample that are compared
MIN_FEATURES: Final = 4
MAX_OBJECTS: Final = 200  # of the program that are searched for datasets
MAX_DEPTH: Final = 3  # attributes of attributes of a variable
MAX_TOLERANCE: Final = 1e-3  # share of the spread of the values that a straight line may leave unexplained
MIN_SIMILARITY: Final = 0.5  # correlation of a sample with its earlier values; replaced samples have none
MAX_CHANGE_CORRELATION: Final = 0.25
MIN_CHANGE_RATIO: Final = 0.3  # of the smaller of two changes; samples that were standardised hardly change again
MIN_CHANGE: Final = 1e-2  # share of the spread by which the values change


class Change(NamedTuple):
    """How stored samples change each time: ``new = factor * old + offset``, for the first feature."""

    factor: float
    offset: float
    rows: int
    """Number of samples that were compared and that changed so."""


class StoredSamples:
    """Some samples of one array, or of one list of arrays, and their earlier values; holds no array in memory.

    Args:
        parts: an array with one row per sample, or the arrays of `ROWS` samples of a list.
    """

    def __init__(self, parts: list[Any]) -> None:
        self._parts = [weakref.ref(each) for each in parts]
        self.features = 0
        """Numbers in a sample; 0 once the array is freed."""
        self._changed_together = 0
        """Largest number of samples that changed between two calls of a model."""
        self._has_changed = False
        self._latest: list[Tensor] | Tensor = _copied(self._rows())
        self._versions: list[list[Tensor]] = [[row.double()] for row in self._latest]

    def _rows(self) -> list[Tensor] | Tensor:
        """Return views of the samples' present values: a tensor of shape (S, columns), or one tensor for each part."""
        parts = [each() for each in self._parts]
        if any(each is None for each in parts):
            self.features = 0
            return []
        tables = [each if isinstance(each, Tensor) else torch.from_numpy(each) for each in cast("list[Any]", parts)]
        if len(tables) > 1:
            self.features = tables[0].numel()
            return [_columns(each.detach().reshape(1, -1))[0] for each in tables]
        every = max(1, len(tables[0]) // ROWS)
        rows = tables[0].detach()[: ROWS * every : every]
        self.features = rows.numel() // len(rows)
        return _columns(rows.reshape(len(rows), -1))

    def update(self) -> None:
        """Record the samples that have changed."""
        before, latest = self._latest, self._rows()
        if isinstance(before, Tensor) and isinstance(latest, Tensor) and torch.equal(before, latest):
            return
        self._latest = _copied(latest)
        changed = 0
        for versions, row in zip(self._versions, self._latest, strict=False):
            if not torch.equal(versions[-1], row.double()) and len(versions) < 4:
                versions.append(row.double())
                changed += 1
        self._changed_together = max(self._changed_together, changed)
        self._has_changed |= changed > 0

    def forget(self) -> None:
        """Forget earlier values, after calls that were not seen."""
        self._versions = [[versions[-1]] for versions in self._versions]

    def are_in(self, batch: Tensor) -> bool:
        """Return True if a batch contains one of the samples with its present values."""
        if not has_storage(batch) or not batch.is_floating_point():
            return False
        rows = _columns(batch.detach().reshape(len(batch), -1))
        return any(bool((rows == versions[-1].to(rows.dtype)).all(1).any()) for versions in self._versions)

    def noise_added_twice(self) -> int:
        """Return how many samples got other random changes twice, a few at a time, on top of the earlier ones.

        Samples that are drawn again from the same clean ones change back: their two changes are correlated with -0.5.
        """
        several = [versions for versions in self._versions if len(versions) > 2] if self._has_changed else []
        if len(several) < MIN_ROWS or self._changed_together > len(self._versions) // 2:
            return 0
        first, second, third = (torch.cat([versions[k] for versions in several]) for k in range(3))
        begins = _correlation(first, second)
        changes = _correlation(second - first, third - second)
        sizes = float((second - first).std()), float((third - second).std())
        is_repeated = min(sizes) > max(MIN_CHANGE * float(first.std()), MIN_CHANGE_RATIO * max(sizes))
        is_noise = is_repeated and begins > MIN_SIMILARITY and abs(changes) < MAX_CHANGE_CORRELATION
        return len(several) if is_noise else 0

    def changed_twice(self) -> Change | None:
        """Return how the samples change, if twice by the same factor and offset; None if otherwise, or not at all."""
        several = [versions for versions in self._versions if len(versions) > 2] if self._has_changed else []
        if len(several) < MIN_ROWS or len({len(each[0]) for each in several}) != 1:
            return None
        first, second, third = (torch.stack([versions[k] for versions in several]) for k in range(3))
        for dims in ((0, 1), (0,)):  # one factor for all features, or one for each
            factor, offset = _line(first, second, dims)
            fits = _close(factor * first + offset, second) and _close(factor * second + offset, third)
            if fits and not _close(first, second, MIN_CHANGE) and (factor.abs() > 0).all():
                return Change(float(factor.flatten()[0]), float(offset.flatten()[0]), len(several))
        return None


def _correlation(one: Tensor, other: Tensor) -> float:
    if not bool(torch.isfinite(one).all() & torch.isfinite(other).all()):
        return math.nan
    centred = one - one.mean(), other - other.mean()
    return float(centred[0] @ centred[1] / (centred[0].norm() * centred[1].norm()).clamp(min=1e-30))


def _columns(rows: Tensor) -> Tensor:
    return rows[:, :: -(-rows.shape[1] // MAX_COLUMNS)] if rows.shape[1] > MAX_COLUMNS else rows


def _copied(rows: list[Tensor] | Tensor) -> list[Tensor] | Tensor:
    return rows.clone() if isinstance(rows, Tensor) else [row.clone() for row in rows]


def _line(old: Tensor, new: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return factor and offset of the straight line that explains the new values best."""
    centre, target = old.mean(dims, keepdim=True), new.mean(dims, keepdim=True)
    spread = (old - centre).square().sum(dims, keepdim=True).clamp(min=1e-30)
    factor = ((old - centre) * (new - target)).sum(dims, keepdim=True) / spread
    return factor, target - factor * centre


def _close(one: Tensor, other: Tensor, tolerance: float = MAX_TOLERANCE) -> bool:
    spread = min(float(one.std()), float(other.std()))
    return bool(torch.isfinite(one).all()) and float((one - other).abs().max()) <= tolerance * spread


def stored_in(dataset: Any) -> Iterator[StoredSamples]:
    """Yield the samples that a dataset has in memory, as arrays or as a list."""
    if isinstance(dataset, list):
        yield from _in_list(cast("list[Any]", dataset))
    fields: list[Any] = list(getattr(dataset, "__dict__", {}).values())
    for value in fields:
        if isinstance(value, list):
            yield from _in_list(cast("list[Any]", value))
    yield from (StoredSamples([each]) for each in (*fields, *getattr(dataset, "tensors", ())) if _is_table(each))


def hand_made_datasets() -> Iterator[tuple[Any, CodeType]]:
    """Yield objects with an own ``__getitem__`` and ``__len__`` that the running functions hold, and its code.

    Cost: up to 1 ms, as it looks into the attributes of up to 200 objects of the program's classes.
    """
    todo = [
        (value, 0) for frame in program_stack() if is_user_code(frame.f_code) for value in variables(frame).values()
    ]
    known: set[int] = set()
    while todo and len(known) < MAX_OBJECTS:
        value, depth = todo.pop()
        codes = {} if isinstance(value, type | torch.nn.Module) else _own_methods(type(value))
        if not codes or id(value) in known:
            continue
        known.add(id(value))
        if "__getitem__" in codes and "__len__" in codes:
            yield value, codes["__getitem__"]
        if depth < MAX_DEPTH:
            todo += [(each, depth + 1) for each in list(getattr(value, "__dict__", {}).values())]


def _own_methods(kind: type) -> dict[str, CodeType]:
    """Return the code of the methods of a class that are the user's."""
    methods = {name: each for part in kind.__mro__[::-1] for name, each in vars(part).items()}
    codes = {name: getattr(each, "__code__", None) for name, each in methods.items()}
    return {name: code for name, code in codes.items() if code is not None and is_user_code(code)}


def stored_in_variables() -> Iterator[StoredSamples]:
    """Yield the arrays and lists of arrays in the variables of the running functions."""
    for frame in program_stack():
        if not is_user_code(frame.f_code):
            continue
        for value in list(variables(frame).values()):
            if isinstance(value, list):
                yield from _in_list(cast("list[Any]", value))
            elif _is_table(value):
                yield StoredSamples([value])


def _in_list(samples: list[Any]) -> Iterator[StoredSamples]:
    if len(samples) < MIN_SAMPLES:
        return
    chosen = samples[:: len(samples) // ROWS][:ROWS]
    pairs = [each if isinstance(each, tuple | list) else (each,) for each in chosen]
    arrays = [next((part for part in cast("list[Any]", pair)[:4] if _is_array(part)), None) for pair in pairs]
    found: list[Any] = [each for each in arrays if each is not None]
    if len(found) == len(chosen) and all(each.shape == found[0].shape for each in found):
        yield StoredSamples(found)


def _is_array(value: Any) -> bool:
    if isinstance(value, Tensor):
        usable = has_storage(value) and value.is_cpu and value.is_floating_point() and not value.requires_grad
        return usable and value.ndim > 0 and value.numel() >= MIN_FEATURES
    if type(value).__module__ != "numpy" or type(value).__name__ != "ndarray":
        return False
    usable = value.dtype.str[1:] in {"f4", "f8"} and value.dtype.isnative and value.flags.writeable
    return (
        usable
        and value.size >= MIN_FEATURES
        and all(step >= 0 and step % value.itemsize == 0 for step in value.strides)
    )


def _is_table(value: Any) -> bool:
    if not _is_array(value) or value.ndim < 2 or len(value) < MIN_SAMPLES:
        return False
    return math.prod(value.shape[1:]) >= MIN_FEATURES
