"""Cuts a ready micro-batch into smaller ones: a walk over whatever the loader yielded, slicing along the examples.

Sums and counts of the pieces add up to those of the whole, so cutting leaves the update as it was but for rounding
(`window`). What is not plainly one entry per example is refused rather than guessed at: a number may be a count of the
whole batch, and a packed sequence or a graph has no first dimension to cut along.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from trueloop.core.errors import InvalidData
from trueloop.core.protocols import MicroBatch
from trueloop.training.objective import describe

_Bounds = Sequence[tuple[int, int]]
ROOT: Final = "the batch"


def rows(micro: MicroBatch) -> int:
    """Return how many examples a micro-batch holds, as far as that can be told; 1 where it cannot, 0 for no data."""
    if micro.indices is not None:
        return len(micro.indices)
    if micro.data is None:
        return 0
    lengths = sorted(_lengths(micro.data, nested=False), key=operator.itemgetter(0))  # fields first, in their order
    return lengths[0][1] if lengths else 1


def split(micro: MicroBatch, most: int) -> list[MicroBatch]:
    """Cut a micro-batch into pieces of at most ``most`` examples, in order; the last may be shorter.

    Args:
        micro: its tensors (first dimension = examples) become views; tuples, lists, mappings and dataclasses are
            walked; text, truth values and None go to every piece.
        most: at least 1.

    Returns:
        The very micro-batch where it is small enough; else pieces of which only the last can close the window.

    Raises:
        InvalidData: something in it cannot be cut along the examples; named with its place.
    """
    size = rows(micro)
    if size <= most:
        return [micro]
    bounds = [(low, min(low + most, size)) for low in range(0, size, most)]
    pieces = _cut(micro.data, size, bounds, ROOT)
    told = micro.indices
    return [
        MicroBatch(piece, micro.closes_window and high == size, None if told is None else told[low:high])
        for piece, (low, high) in zip(pieces, bounds, strict=True)
    ]


def _lengths(value: Any, *, nested: bool) -> Iterator[tuple[bool, int]]:
    """(is a list, length) of all that may have one entry per example.

    A list below the root may hold one tensor per example, whose first dimension says nothing.
    """
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim:
            yield False, len(value)
    elif isinstance(value, list) and nested:
        yield True, len(cast("list[Any]", value))
    else:
        for _, part in fields(value):
            yield from _lengths(part, nested=True)


def fields(value: Any) -> list[tuple[Any, Any]]:
    """(key, part) of a container; nothing of anything else."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[Any, Any]", value).items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(cast("Sequence[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def _cut(value: Any, size: int, bounds: _Bounds, place: str) -> list[Any]:
    """Return one piece of ``value`` per bound."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return [value] * len(bounds)
    if isinstance(value, (Tensor, np.ndarray)):
        _check_first_dimension(value, size, place)
        return [value[low:high] for low, high in bounds]
    if isinstance(value, PackedSequence):
        raise _refused(place, "is a packed sequence, whose examples lie interleaved")
    if isinstance(value, list):
        return _cut_list(cast("list[Any]", value), size, bounds, place)
    if isinstance(value, (tuple, MutableMapping)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return [_rebuilt(value, parts) for parts in _cut_fields(value, size, bounds, place)]
    if isinstance(value, (int, float)):
        raise _refused(place, f"is the number {value}, which may be a count of the whole batch")
    raise _refused(place, f"is a {type(value).__name__}, which only its own library can cut")


def _check_first_dimension(value: Any, size: int, place: str) -> None:
    if isinstance(value, Tensor) and (value.is_nested or value.layout is not torch.strided):
        raise _refused(place, f"is a {'nested' if value.is_nested else 'sparse'} tensor")
    if value.ndim == 0:
        raise _refused(place, "is a single number, which may be a count of the whole batch")
    if len(value) != size:
        raise _refused(place, f"is {_shown(value)}, whose first dimension is not the {size} examples")


def _cut_list(value: list[Any], size: int, bounds: _Bounds, place: str) -> list[Any]:
    """Cut a list of fields within each, as the default collate function makes them, or one of examples between them."""
    by_example = len(value) == size
    try:
        by_field = [list(parts) for parts in _cut_fields(value, size, bounds, place)]
    except InvalidData:
        if not by_example:
            raise
        return [value[low:high] for low, high in bounds]
    if by_example and all(part is None or isinstance(part, (bool, str, bytes)) for part in value):
        return [value[low:high] for low, high in bounds]
    if by_example and place != ROOT:
        raise _refused(place, f"is a list of {size} in which every entry has {size} rows: of examples, or of fields?")
    return by_field


def _cut_fields(value: Any, size: int, bounds: _Bounds, place: str) -> Iterator[tuple[Any, ...]]:
    """Yield, bound by bound, the pieces of all fields."""
    cut = [_cut(part, size, bounds, f"{place}[{key!r}]") for key, part in fields(value)]
    return zip(*cut, strict=True) if cut else iter([()] * len(bounds))


def _rebuilt(value: Any, parts: tuple[Any, ...]) -> Any:
    """Return a container like ``value`` with other parts."""
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(parts)  # a named tuple, or a plain one
    piece = copy.copy(value)  # keeps a defaultdict's factory and a subclass's attributes
    if isinstance(value, MutableMapping):
        cast("MutableMapping[Any, Any]", piece).update(zip(cast("Any", value), parts, strict=True))
        return piece
    for (name, _), part in zip(fields(value), parts, strict=True):
        object.__setattr__(piece, name, part)  # frozen ones too; the copy is not yet anybody's
    return piece


def _shown(value: Any) -> str:
    return describe(value) if isinstance(value, Tensor) else f"an array {list(value.shape)}"


def _refused(place: str, complaint: str) -> InvalidData:
    return InvalidData(f"This micro-batch cannot be cut into smaller ones: {place} {complaint}.")
