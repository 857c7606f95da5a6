"""Collate samples into a batch: stack them like torch's default, or pad them to the longest one and add a mask."""

# ruff: noqa: N806 - shapes are part of the name: B samples, T tokens of the longest sample, ... any further axes

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from trueloop.core.errors import InvalidData

TARGETS = ("label", "labels", "target", "targets")


class GatheredBatch(Sequence[Any]):
    """Samples that a dataset has read as one batch; usable with any collate function.

    A dataset's ``__getitems__`` may return this: `collate` returns ``batch`` unchanged, at no cost; for any other
    collate function (torch's, a user's) it is a sequence of samples.

    Args:
        batch: list or mapping of tensors [B, ...], the result that `collate` would return.
        size: number of samples, B.
    """

    def __init__(self, batch: list[Tensor] | dict[str, Tensor], size: int) -> None:
        self.batch = batch
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if isinstance(self.batch, dict):
            return {name: column[index] for name, column in self.batch.items()}
        return tuple(column[index] for column in self.batch)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))


def collate(samples: Any) -> Any:
    """Stack samples into a batch, as ``torch.utils.data.default_collate`` does.

    There are two differences: a list of numbers in a sample (a row of a Hugging Face dataset) becomes one tensor,
    while torch returns one tensor per list index; and a mapping of column name to B values is accepted as well.

    Args:
        samples: a list of B samples, a `GatheredBatch`, or a mapping of B values per column.

    Returns:
        Tensors [B, ...] in the structure of a sample; strings become a list.

    Raises:
        InvalidData: the samples cannot be stacked; the message has the first one that differs and its shape.
    """
    if isinstance(samples, GatheredBatch):
        return samples.batch
    if isinstance(samples, Mapping):
        columns = cast("Mapping[str, Any]", samples)
        return {name: _collate_column(values) for name, values in columns.items()}
    if not len(samples):
        raise InvalidData("There are no samples to put into a batch.")
    rows = [_numbers_to_tensors(sample) for sample in samples] if _has_number_lists(samples[0]) else samples
    try:
        return default_collate(rows)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise _cannot_stack(rows, error) from error


def pad_sequences(
    samples: Sequence[Any],
    padding_value: float | Mapping[str, float] = 0,
    *,
    target_padding: float = -100,
    targets: Sequence[str] = TARGETS,
    mask: str = "attention_mask",
) -> Any:
    """Pad sequences of different lengths to the longest of the batch.

    Args:
        samples: B sequences (tensors [T, ...] or lists of numbers), tuples whose first field is one, or mappings.
        padding_value: value to append. For mappings, it may be a mapping from each field to pad to its padding value;
            the mask is then made for the first of these fields, and the other fields are collated.
        target_padding: value to append to targets that are sequences; torch's losses ignore -100.
        targets: names of the fields of a mapping that are targets.
        mask: name of the mask in a mapping. If the samples have a field of this name, it is padded with 0 and returned.

    Returns:
        ``(padded_BT, mask_BT)`` for sequences, ``((padded_BT, mask_BT), target, ...)`` for tuples, a dict with the mask
        added for mappings. ``mask_BT`` is bool, True = real token. A target is padded if its lengths differ, else
        stacked.

    Raises:
        InvalidData: a sample has no first axis, is empty, or differs from the first one in another axis or dtype.
    """
    if not len(samples):
        raise InvalidData("There are no samples to pad.")
    first = samples[0]
    if isinstance(first, Mapping):
        values = {name: [sample[name] for sample in samples] for name in cast("Mapping[str, Any]", first)}
        return _pad_mapping(values, padding_value, target_padding, targets, mask)
    if isinstance(padding_value, Mapping):
        raise InvalidData(
            f"padding_value is a mapping, but a sample is a {type(first).__name__}.", fix="Give a number."
        )
    if isinstance(first, Tensor) or _is_number_list(first):
        return _pad_column(samples, padding_value, "sequence")
    columns = list(zip(*samples, strict=True))
    fields = [_pad_if_ragged(column, target_padding, f"field {i + 1}") for i, column in enumerate(columns[1:])]
    return (_pad_column(columns[0], padding_value, "sequence"), *fields)


def _pad_mapping(
    values: dict[str, list[Any]],
    padding_value: float | Mapping[str, float],
    target_padding: float,
    targets: Sequence[str],
    mask: str,
) -> dict[str, Any]:
    if isinstance(padding_value, Mapping):
        paddings = dict(padding_value)
        missing = [name for name in paddings if name not in values]
        if missing:
            raise InvalidData(f"There is no field {missing[0]!r} to pad.", fix=f"A sample has {', '.join(values)}.")
    else:
        paddings = _sequence_fields(values, padding_value, targets, mask)
    padded: dict[str, Any] = {}
    mask_BT: Tensor | None = None
    for name, column in values.items():
        if name in paddings:
            padded[name], column_mask_BT = _pad_column(column, paddings[name], name)
            mask_BT = column_mask_BT if mask_BT is None or name == next(iter(paddings)) else mask_BT
        elif name in targets:
            padded[name] = _pad_if_ragged(column, target_padding, name)
        else:
            padded[name] = _pad_if_ragged(column, 0, name) if name == mask else _collate_column(column)
    padded.setdefault(mask, mask_BT)
    return padded


def _sequence_fields(
    values: dict[str, list[Any]], padding_value: float, targets: Sequence[str], mask: str
) -> dict[str, float]:
    """Return the fields to pad: sequences that are not targets; their lengths must agree in every sample."""
    names = [
        name
        for name, column in values.items()
        if name not in (*targets, mask)
        and (_is_number_list(column[0]) or (isinstance(column[0], Tensor) and column[0].ndim))
    ]
    if not names:
        raise InvalidData(f"No field of {', '.join(values)} is a sequence.", fix="Give tensors [T, ...] or lists.")
    for i, lengths in enumerate(zip(*([len(value) for value in values[name]] for name in names), strict=True)):
        if len(set(lengths)) > 1:
            raise InvalidData(
                f"Sample {i} of the batch has fields of different lengths: {dict(zip(names, lengths, strict=True))}.",
                why="The batch has one mask, which needs fields of equal lengths.",
                fix=f"List the fields to pad; the first one gives the mask: padding_value={{{names[0]!r}: 0}}.",
            )
    return dict.fromkeys(names, padding_value)


def _pad_column(column: Sequence[Any], padding_value: float, name: str) -> tuple[Tensor, Tensor]:
    """Return the padded tensor [B, T, ...] and the mask [B, T]."""
    tensors = [torch.as_tensor(value) for value in column]
    first = tensors[0]
    for i, tensor in enumerate(tensors):
        if not tensor.ndim or not len(tensor):
            raise InvalidData(
                f"Sample {i} of the batch: {name} has shape {tuple(tensor.shape)}.",
                why="A row without a real token makes attention divide by zero.",
                fix="Leave empty samples out of the dataset; a sequence is [T, ...] with T >= 1.",
            )
        if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
            raise InvalidData(
                f"Sample {i} of the batch: {name} has shape {tuple(tensor.shape)} and {tensor.dtype}; "
                f"sample 0 has {tuple(first.shape)} and {first.dtype}.",
                fix="Only the first axis may differ.",
            )
    lengths_B = torch.tensor([len(tensor) for tensor in tensors])
    mask_BT = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    if not mask_BT.all() and torch.tensor(padding_value).to(first.dtype).item() != padding_value:
        raise InvalidData(
            f"In {name}, {first.dtype} cannot hold the padding value {padding_value}.",
            fix="Choose another padding value, or give the samples as int64 or float.",
        )
    return pad_sequence(tensors, batch_first=True, padding_value=padding_value), mask_BT


def _pad_if_ragged(column: Sequence[Any], padding_value: float, name: str) -> Any:
    column = [_list_to_tensor(value) for value in column]
    if isinstance(column[0], Tensor) and column[0].ndim and len({len(value) for value in column}) > 1:
        return _pad_column(column, padding_value, name)[0]
    return collate(column)


def _collate_column(values: Any) -> Any:
    """Collate the values of one field."""
    return values if isinstance(values, Tensor) else collate([_list_to_tensor(value) for value in values])


def _is_number_list(value: Any) -> bool:
    """Return True for a list of numbers, and for a list of such lists."""
    innermost = value
    while isinstance(innermost, list) and innermost:
        innermost = cast("list[Any]", innermost)[0]
    return isinstance(value, list) and isinstance(innermost, (bool, int, float))


def _has_number_lists(sample: Any) -> bool:
    if isinstance(sample, Mapping):
        return any(map(_is_number_list, cast("Mapping[str, Any]", sample).values()))
    return isinstance(sample, (tuple, list)) and any(map(_is_number_list, cast("Sequence[Any]", sample)))


def _numbers_to_tensors(sample: Any) -> Any:
    """Convert the lists of numbers in a sample's fields to tensors."""
    if isinstance(sample, Mapping):
        return {name: _list_to_tensor(value) for name, value in cast("Mapping[str, Any]", sample).items()}
    return tuple(_list_to_tensor(value) for value in sample)


def _list_to_tensor(value: Any) -> Any:
    """Convert a list of numbers to a tensor; raise for ragged lists of lists; return anything else unchanged."""
    if not _is_number_list(value):
        return value
    try:
        return torch.tensor(value)
    except (ValueError, TypeError) as error:
        raise InvalidData(
            f"A sample contains a list that cannot become a tensor: {error}.", fix="Pad it in the dataset."
        ) from error


def _cannot_stack(samples: Sequence[Any], error: Exception) -> InvalidData:
    shapes = [_describe_structure(sample) for sample in samples]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            return InvalidData(
                f"Sample {i} of the batch is {shape}; sample 0 is {shapes[0]}.",
                why="Samples of one batch are stacked, so their shapes must be equal.",
                fix="Make the shapes equal in the dataset, or pad: collate=pad_sequences.",
            )
    return InvalidData(
        f"Samples like {shapes[0]} cannot be put into a batch: {error}",
        fix="Return tensors, arrays, numbers, strings, or tuples and mappings of those; or pass your own collate.",
    )


def _describe_structure(sample: Any) -> str:
    """Describe the structure of a sample: "(float32[1, 8, 8], int)"."""
    if isinstance(sample, Mapping):
        fields = cast("Mapping[str, Any]", sample)
        return "{" + ", ".join(f"{name}: {_describe_structure(value)}" for name, value in fields.items()) + "}"
    if isinstance(sample, (tuple, list)):
        return "(" + ", ".join(_describe_structure(value) for value in cast("Sequence[Any]", sample)) + ")"
    if hasattr(sample, "shape") and hasattr(sample, "dtype"):
        return f"{str(sample.dtype).removeprefix('torch.')}{list(sample.shape)}"
    return type(sample).__name__
