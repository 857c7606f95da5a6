"""Split a loaded micro-batch into smaller ones by slicing every part of it along the examples.

Sums and counts of the pieces add up to those of the full micro-batch, so splitting changes the update only by rounding
(`window`). A part that does not clearly have one entry per example raises an error: a number may be a count of the
whole batch, and a packed sequence or a graph has no first dimension to slice.
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

_Bounds = Sequence[tuple[int, int]]  # for each piece: index of its first example, and of the example after its last
ROOT: Final = "the batch"


def count_examples(micro: MicroBatch) -> int:
    """Return the number of examples in a micro-batch; 1 if it cannot be determined, 0 without data."""
    if micro.indices is not None:
        return len(micro.indices)
    if micro.data is None:
        return 0
    lengths = sorted(_candidate_lengths(micro.data, nested=False), key=operator.itemgetter(0))  # tensors before lists
    return lengths[0][1] if lengths else 1


def split_micro_batch(micro: MicroBatch, max_examples: int) -> list[MicroBatch]:
    """Split a micro-batch into pieces of at most ``max_examples`` examples, in order; the last may be shorter.

    Args:
        micro: the micro-batch. Tensors (first dimension = examples) are sliced without copying; tuples, lists, mappings
            and dataclasses are searched for tensors; every piece gets the same text, booleans and None.
        max_examples: largest number of examples in a piece, at least 1.

    Returns:
        The same micro-batch if it is small enough; else the pieces, of which only the last can close the window.

    Raises:
        InvalidData: a part cannot be split along the examples; the message names its path.
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


def _candidate_lengths(value: Any, *, nested: bool) -> Iterator[tuple[bool, int]]:
    """Yield (is a list, length) of every part that may have one entry per example.

    A nested list may have one tensor per example, whose first dimension is not the number of examples.
    """
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim:
            yield False, len(value)
    elif isinstance(value, list) and nested:
        yield True, len(cast("list[Any]", value))
    else:
        for _, part in container_items(value):
            yield from _candidate_lengths(part, nested=True)


def container_items(value: Any) -> list[tuple[Any, Any]]:
    """Return (key, item) pairs of a container; an empty list for anything else."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[Any, Any]", value).items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(cast("Sequence[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def _split_value(value: Any, size: int, bounds: _Bounds, path: str) -> list[Any]:
    """Return one piece of ``value`` for each bound."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return [value] * len(bounds)
    if isinstance(value, (Tensor, np.ndarray)):
        _check_first_dimension(value, size, path)
        return [value[low:high] for low, high in bounds]
    if isinstance(value, PackedSequence):
        raise _cannot_split(path, "is a packed sequence, in which examples are interleaved")
    if isinstance(value, list):
        return _split_list(cast("list[Any]", value), size, bounds, path)
    if isinstance(value, (tuple, MutableMapping)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return [_rebuild(value, parts) for parts in _split_fields(value, size, bounds, path)]
    if isinstance(value, (int, float)):
        raise _cannot_split(path, f"is the number {value}, which may be a count of the whole batch")
    raise _cannot_split(path, f"is a {type(value).__name__}, which only its own library can split")


def _check_first_dimension(value: Any, size: int, path: str) -> None:
    if isinstance(value, Tensor) and (value.is_nested or value.layout is not torch.strided):
        raise _cannot_split(path, f"is a {'nested' if value.is_nested else 'sparse'} tensor")
    if value.ndim == 0:
        raise _cannot_split(path, "is a single number, which may be a count of the whole batch")
    if len(value) != size:
        raise _cannot_split(path, f"is {_describe_array(value)}, whose first dimension is not the {size} examples")


def _split_list(value: list[Any], size: int, bounds: _Bounds, path: str) -> list[Any]:
    """Split a list of fields (as the default collate function returns it) within each field, or a list of examples."""
    one_per_example = len(value) == size
    try:
        by_field = [list(parts) for parts in _split_fields(value, size, bounds, path)]
    except InvalidData:
        if not one_per_example:
            raise
        return [value[low:high] for low, high in bounds]
    if one_per_example and all(part is None or isinstance(part, (bool, str, bytes)) for part in value):
        return [value[low:high] for low, high in bounds]
    if one_per_example and path != ROOT:
        raise _cannot_split(
            path, f"is a list of {size} entries with {size} rows each: it may be a list of examples or of fields"
        )
    return by_field


def _split_fields(value: Any, size: int, bounds: _Bounds, path: str) -> Iterator[tuple[Any, ...]]:
    """Yield for each bound the pieces of all fields."""
    pieces = [_split_value(part, size, bounds, f"{path}[{key!r}]") for key, part in container_items(value)]
    return zip(*pieces, strict=True) if pieces else iter([()] * len(bounds))


def _rebuild(value: Any, parts: tuple[Any, ...]) -> Any:
    """Return a container like ``value`` with other parts."""
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(parts)  # a named tuple, or a plain one
    piece = copy.copy(value)  # keeps a defaultdict's factory and a subclass's attributes
    if isinstance(value, MutableMapping):
        cast("MutableMapping[Any, Any]", piece).update(zip(cast("Any", value), parts, strict=True))
        return piece
    for (name, _), part in zip(container_items(value), parts, strict=True):
        object.__setattr__(piece, name, part)  # also works for frozen dataclasses; the copy is not shared yet
    return piece


def _describe_array(value: Any) -> str:
    return describe_batch(value) if isinstance(value, Tensor) else f"an array {list(value.shape)}"


def _cannot_split(path: str, problem: str) -> InvalidData:
    return InvalidData(f"This micro-batch cannot be split: {path} {problem}.")
