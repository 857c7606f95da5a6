"""Converts untrusted requests into samples, strict in shape, type and value.

A sample is one array per input, without the batch dimension.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.core.formatting import format_count
from trueloop.core.untrusted_input import safe_repr
from trueloop.export.artifact import Description
from trueloop.export.io_description import Array

Numbers: TypeAlias = "NDArray[Any]"
Sample = tuple[Numbers, ...]


def parse_request(
    description: Description, given: Mapping[str, Any], *, max_samples: int | None = None
) -> list[Sample]:
    """Parse a JSON object with one of the fields "inputs", "text" or "rows" into samples.

    Args:
        description: description of the model.
        given: "inputs" contains nested lists of one or several samples, or for a model of several inputs an object of
            those by name; "text" one text or a list; "rows" a list of objects by column name.
        max_samples: largest number of samples.

    Raises:
        InvalidConfig: a field is unknown or does not fit this model, or there are too many samples.
        InvalidData: the model does not accept a value; names its position.
    """
    allowed = {"array": ("inputs",), "image": ("inputs",), "text": ("inputs", "text"), "table": ("inputs", "rows")}
    known = allowed[description.reading.kind]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            meant = f"Did you mean {close[0]!r}? " if close else ""
            raise InvalidConfig(
                f"There is no field {safe_repr(name)}.", fix=f"{meant}This model takes {' or '.join(known)}."
            )
    if len(given) != 1:
        raise InvalidConfig(f"{len(given)} fields were given.", fix=f"Give one: {' or '.join(known)}.")
    ((field, value),) = given.items()
    makers = {"inputs": _samples_from_inputs, "text": _samples_from_text, "rows": _samples_from_rows}
    samples = makers[field](description, value)
    if not samples or (max_samples is not None and len(samples) > max_samples):
        raise InvalidConfig(
            f"{len(samples)} samples were given.", fix=f"Give 1 to {max_samples or 'any number'} at a time."
        )
    return samples


def split_samples(description: Description, arrays: Sequence[Numbers]) -> list[Sample]:
    """Split one array for each input, with or without the batch dimension, into samples.

    Raises:
        InvalidData: an array does not fit.
    """
    columns: list[list[Numbers]] = []
    for spec, array in zip(description.inputs, arrays, strict=True):
        alone = array.ndim == len(spec.shape) - 1
        if not alone and array.ndim != len(spec.shape):
            raise _rejected(spec.name, f"has {array.ndim} dimensions", spec)
        several = cast("list[Numbers]", [array] if alone else list(array))
        columns.append(
            [
                validate_array(spec, each, f"{spec.name}" if alone else f"{spec.name}[{n}]")
                for n, each in enumerate(several)
            ]
        )
    counts = {len(each) for each in columns}
    if len(counts) > 1:
        raise InvalidData(f"The inputs contain {sorted(counts)} samples.", fix="Give the same number of each input.")
    return list(zip(*columns, strict=True))


def validate_array(spec: Array, array: Numbers, where: str) -> Numbers:
    """Return one input of one sample, converted to the model's type.

    Raises:
        InvalidData: the shape is wrong, the type would lose information, or values are non-finite or out of bounds.
    """
    sizes = spec.shape[1:]
    fits = array.ndim == len(sizes) and all(
        size >= extent.lowest and (extent.highest is None or size <= extent.highest)
        for size, extent in zip(array.shape, sizes, strict=True)
    )
    if not fits:
        raise _rejected(where, f"has the shape [{', '.join(map(str, array.shape))}]", spec)
    wanted = np.dtype(spec.dtype)
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "b") != (wanted.kind == "b"):
        raise _rejected(where, f"is of type {array.dtype}", spec)
    if array.dtype.kind == "f" and wanted.kind in "iu":
        raise _rejected(where, f"is of type {array.dtype}, but the model takes integers", spec)
    if not _is_finite(array):
        raise _rejected(where, "contains NaN or infinity", spec)
    with np.errstate(over="ignore"):
        found: Numbers = array.astype(wanted)
    if not _is_finite(found) or (wanted.kind in "iu" and bool((found != array).any())):
        raise _rejected(where, f"contains a number that {spec.dtype} cannot represent", spec)
    if found.size and spec.lowest is not None and found.min() < spec.lowest:
        raise _rejected(where, f"contains {found.min()}", spec)
    if found.size and spec.highest is not None and found.max() > spec.highest:
        raise _rejected(where, f"contains {found.max()}", spec)
    return found


def require_single_input(description: Description) -> Array:
    """Return the only input of a model.

    Raises:
        InvalidConfig: the model takes several inputs.
    """
    if len(description.inputs) != 1:
        names = ", ".join(each.name for each in description.inputs)
        raise InvalidConfig(
            f"The model takes {names}, but this is one input.", fix="Give JSON with the inputs by name."
        )
    return description.inputs[0]


def text_sample(description: Description, text: str, where: str) -> Sample:
    """Make a sample from a text.

    Raises:
        InvalidData: it is empty, longer than the model's context, or not valid Unicode.
    """
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise InvalidData(f"{where} contains a lone surrogate: {safe_repr(text)}.", fix="Send valid Unicode.") from None
    most = description.reading.length
    if not content or (most is not None and len(content) > most):
        raise InvalidData(
            f"{where} has {len(content)} bytes.",
            why="The model would ignore everything beyond its context.",
            fix=f"Give 1 to {most or 'any number of'} bytes.",
        )
    spec = require_single_input(description)
    return (validate_array(spec, np.frombuffer(content, dtype=np.uint8), where),)


def row_sample(description: Description, row: Mapping[str, Any], where: str) -> Sample:
    """Make a sample from numbers by column.

    Raises:
        InvalidData: a column is missing, unknown, or not a number.
    """
    columns = description.reading.columns
    for name in row:
        if name not in columns:
            close = difflib.get_close_matches(str(name), columns, 1)
            meant = f"Did you mean {close[0]!r}?" if close else f"Columns are {', '.join(columns[:5])} ..."
            raise InvalidData(f"{where} has a column {safe_repr(name)}, which is unknown to the model.", fix=meant)
    missing = [name for name in columns if name not in row]
    if missing:
        raise InvalidData(
            f"{where} lacks {format_count(len(missing), 'column')}: {', '.join(missing[:3])}.",
            fix="Give every column of training.",
        )
    spec = require_single_input(description)
    numbers = _to_array([row[name] for name in columns], where)
    return (validate_array(spec, numbers, where),)


def _samples_from_inputs(description: Description, value: Any) -> list[Sample]:
    specs = description.inputs
    if len(specs) == 1 and not isinstance(value, dict):
        return split_samples(description, [_to_array(value, "inputs")])
    if not isinstance(value, dict) or set(cast("dict[str, Any]", value)) != {spec.name for spec in specs}:
        names = ", ".join(spec.name for spec in specs)
        raise InvalidConfig(f"inputs is {safe_repr(value)}.", fix=f"Give an object of {names}.")
    given = cast("dict[str, Any]", value)
    return split_samples(description, [_to_array(given[spec.name], spec.name) for spec in specs])


def _samples_from_text(description: Description, value: Any) -> list[Sample]:
    texts: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidConfig(f"text is {safe_repr(value)}.", fix="Give a text, or a list of texts.")
    return [text_sample(description, text, f"text[{place}]") for place, text in enumerate(texts)]


def _samples_from_rows(description: Description, value: Any) -> list[Sample]:
    rows: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise InvalidConfig(f"rows is {safe_repr(value)}.", fix="Give a list of objects: column by name.")
    return [row_sample(description, row, f"rows[{place}]") for place, row in enumerate(rows)]


def _to_array(value: Any, where: str) -> Numbers:
    """Convert nested lists of numbers to an array.

    Raises:
        InvalidData: the lists contain something else, are ragged, or are nested too deep.
    """
    flat: list[int | float | bool] = []
    shape = _flatten(value, where, flat, 16)
    kinds = {type(each) for each in flat}
    if bool in kinds and len(kinds) > 1:
        raise InvalidData(f"{where} mixes numbers with true and false.", fix="Give numbers.")
    try:
        array = np.array(flat, dtype=np.float64 if float in kinds or not kinds else None)
    except OverflowError:
        raise InvalidData(f"{where} contains an integer that is too large.", fix="Give numbers in range.") from None
    if array.dtype.kind == "O":
        raise InvalidData(f"{where} contains an integer that is too large.", fix="Give numbers in range.")
    return array.reshape(shape)


def _flatten(value: Any, where: str, flat: list[Any], max_depth: int) -> tuple[int, ...]:
    if isinstance(value, list):
        if max_depth == 0:
            raise InvalidData(f"{where} is nested too deep.", fix="Give lists as deep as the model's input.")
        items = cast("list[Any]", value)
        shapes = [_flatten(item, f"{where}[{place}]", flat, max_depth - 1) for place, item in enumerate(items)]
        if any(shape != shapes[0] for shape in shapes):
            place = next(place for place, shape in enumerate(shapes) if shape != shapes[0])
            raise InvalidData(f"{where}[{place}] has another size than {where}[0].", fix="Give lists of one size.")
        return (len(items), *(shapes[0] if shapes else ()))
    if not isinstance(value, int | float):
        raise InvalidData(f"{where} is {safe_repr(value)}.", fix="Give a number.")
    flat.append(value)
    return ()


def _is_finite(array: Numbers) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _rejected(where: str, what: str, spec: Array) -> InvalidData:
    one = f"{spec.dtype}[{', '.join(map(str, spec.shape[1:]))}]"
    low, high = spec.lowest, spec.highest
    bounds = "" if low is None or high is None else f", values from {low:g} to {high:g}"
    return InvalidData(f"{where} {what}.", fix=f"A sample of {spec.name} is {one}{bounds}, with finite values.")


def probabilities(scores: Sequence[float]) -> list[float]:
    """Return softmax of logits or log-probabilities."""
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]
