"""Split a loaded micro-batch into smaller ones by slicing everything in it along the examples.

Sums and counts of the pieces add up to those of the full micro-batch, so splitting changes the update only by rounding
(`window`). Anything that is not clearly one entry per example is refused: a number may be a count of the whole batch,
and a packed sequence or a graph has no first dimension to slice.
"""

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
from trueloop.training.objective import describe_batch

_Bounds = Sequence[tuple[int, int]]
ROOT: Final = "the batch"


def count_examples(micro: MicroBatch) -> int:
    """Return the number of examples in a micro-batch; 1 where it cannot be determined, 0 for no data."""
    if micro.indices is not None:
        return len(micro.indices)
    if micro.data is None:
        return 0
    lengths = sorted(_lengths(micro.data, nested=False), key=operator.itemgetter(0))  # fields first, in their order
    return lengths[0][1] if lengths else 1


def split_micro_batch(micro: MicroBatch, max_examples: int) -> list[MicroBatch]:
    """Split a micro-batch into pieces of at most ``max_examples`` examples, in order; the last may be shorter.

    Args:
        micro: its tensors (first dimension = examples) become views; tuples, lists, mappings and dataclasses are
            walked; text, booleans and None go to every piece.
        max_examples: at least 1.

    Returns:
        The same micro-batch where it is small enough; else pieces, of which only the last can close the window.

    Raises:
        InvalidData: something in it cannot be split along the examples; the message names its path.
    """
    size = count_examples(micro)
    if size <= max_examples:
        return [micro]
    bounds = [(low, min(low + max_examples, size)) for low in range(0, size, max_examples)]
    pieces = _split_value(micro.data, size, bounds, ROOT)
    indices = micro.indices
    return [
        MicroBatch(piece, micro.closes_window and high == size, None if indices is None else indices[low:high])
        for piece, (low, high) in zip(pieces, bounds, strict=True)
    ]


def _lengths(value: Any, *, nested: bool) -> Iterator[tuple[bool, int]]:
    """Yield (is a list, length) of everything that may have one entry per example.

    A list below the root may hold one tensor per example, whose first dimension is not the number of examples.
    """
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim:
            yield False, len(value)
    elif isinstance(value, list) and nested:
        yield True, len(cast("list[Any]", value))
    else:
        for _, part in container_items(value):
            yield from _lengths(part, nested=True)


def container_items(value: Any) -> list[tuple[Any, Any]]:
    """Return (key, item) pairs of a container; an empty list for anything else."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[Any, Any]", value).items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(cast("Sequence[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def _split_value(value: Any, size: int, bounds: _Bounds, place: str) -> list[Any]:
    """Return one piece of ``value`` for each bound."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return [value] * len(bounds)
    if isinstance(value, (Tensor, np.ndarray)):
        _check_first_dimension(value, size, place)
        return [value[low:high] for low, high in bounds]
    if isinstance(value, PackedSequence):
        raise _cannot_split(place, "is a packed sequence, whose examples lie interleaved")
    if isinstance(value, list):
        return _split_list(cast("list[Any]", value), size, bounds, place)
    if isinstance(value, (tuple, MutableMapping)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return [_rebuild(value, parts) for parts in _split_fields(value, size, bounds, place)]
    if isinstance(value, (int, float)):
        raise _cannot_split(place, f"is the number {value}, which may be a count of the whole batch")
    raise _cannot_split(place, f"is a {type(value).__name__}, which only its own library can cut")


def _check_first_dimension(value: Any, size: int, place: str) -> None:
    if isinstance(value, Tensor) and (value.is_nested or value.layout is not torch.strided):
        raise _cannot_split(place, f"is a {'nested' if value.is_nested else 'sparse'} tensor")
    if value.ndim == 0:
        raise _cannot_split(place, "is a single number, which may be a count of the whole batch")
    if len(value) != size:
        raise _cannot_split(place, f"is {_describe_array(value)}, whose first dimension is not the {size} examples")


def _split_list(value: list[Any], size: int, bounds: _Bounds, place: str) -> list[Any]:
    """Split a list of fields within each field, as the default collate function makes it, or a list of examples."""
    by_example = len(value) == size
    try:
        by_field = [list(parts) for parts in _split_fields(value, size, bounds, place)]
    except InvalidData:
        if not by_example:
            raise
        return [value[low:high] for low, high in bounds]
    if by_example and all(part is None or isinstance(part, (bool, str, bytes)) for part in value):
        return [value[low:high] for low, high in bounds]
    if by_example and place != ROOT:
        raise _cannot_split(
            place, f"is a list of {size} in which every entry has {size} rows: of examples, or of fields?"
        )
    return by_field


def _split_fields(value: Any, size: int, bounds: _Bounds, place: str) -> Iterator[tuple[Any, ...]]:
    """Yield the pieces of all fields, one bound after the other."""
    cut = [_split_value(part, size, bounds, f"{place}[{key!r}]") for key, part in container_items(value)]
    return zip(*cut, strict=True) if cut else iter([()] * len(bounds))


def _rebuild(value: Any, parts: tuple[Any, ...]) -> Any:
    """Return a container like ``value`` with other parts."""
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(parts)  # a named tuple, or a plain one
    piece = copy.copy(value)  # keeps a defaultdict's factory and a subclass's attributes
    if isinstance(value, MutableMapping):
        cast("MutableMapping[Any, Any]", piece).update(zip(cast("Any", value), parts, strict=True))
        return piece
    for (name, _), part in zip(container_items(value), parts, strict=True):
        object.__setattr__(piece, name, part)  # frozen ones too; the copy is not shared yet
    return piece


def _describe_array(value: Any) -> str:
    return describe_batch(value) if isinstance(value, Tensor) else f"an array {list(value.shape)}"


def _cannot_split(place: str, complaint: str) -> InvalidData:
    return InvalidData(f"This micro-batch cannot be split: {place} {complaint}.")
