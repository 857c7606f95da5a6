"""Convert untrusted requests into samples, after checking shapes, types and values.

A sample is a tuple with one array per input of the model, without the batch dimension.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.core.formatting import did_you_mean, format_count
from trueloop.core.untrusted_input import safe_repr
from trueloop.export.artifact import Description
from trueloop.export.io_description import Array, SizeRange

Numbers: TypeAlias = "NDArray[Any]"
Sample = tuple[Numbers, ...]


def parse_request(
    description: Description, request: Mapping[str, Any], *, max_samples: int | None = None
) -> list[Sample]:
    """Parse a JSON object with one of the fields "inputs", "text" or "rows" into samples.

    Args:
        description: description of the model.
        request: the object. "inputs" is a nested list of numbers, one sample or several; for a model with several
            inputs, an object of such lists by name. "text" is a string or a list of strings. "rows" is a list of
            objects by column name.
        max_samples: largest number of samples.

    Raises:
        InvalidConfig: a field is unknown or does not fit this model, or there are too many samples.
        InvalidData: the model does not accept a value; the message has its position.
    """
    fields = {"array": ("inputs",), "image": ("inputs",), "text": ("inputs", "text"), "table": ("inputs", "rows")}
    allowed = fields[description.reading.kind]
    for name in request:
        if name not in allowed:
            raise InvalidConfig(
                f"There is no field {safe_repr(name)}.",
                fix=f"{did_you_mean(str(name), allowed)}This model takes {' or '.join(allowed)}.",
            )
    if len(request) != 1:
        raise InvalidConfig(f"The request has {len(request)} fields.", fix=f"Give one: {' or '.join(allowed)}.")
    ((field, value),) = request.items()
    parsers = {"inputs": _samples_from_inputs, "text": _samples_from_text, "rows": _samples_from_rows}
    samples = parsers[field](description, value)
    if not samples or (max_samples is not None and len(samples) > max_samples):
        at_most = f" and at most {max_samples}" if max_samples is not None else ""
        raise InvalidConfig(f"The request has {len(samples)} samples.", fix=f"Give at least one{at_most}.")
    return samples


def split_samples(description: Description, arrays: Sequence[Numbers]) -> list[Sample]:
    """Split one array per input, with or without the batch dimension, into samples.

    Raises:
        InvalidData: an array does not fit.
    """
    columns: list[list[Numbers]] = []
    for spec, array in zip(description.inputs, arrays, strict=True):
        is_single = array.ndim == len(spec.shape) - 1
        if not is_single and array.ndim != len(spec.shape):
            raise _rejection(spec.name, f"has {array.ndim} dimensions", spec)
        rows = cast("list[Numbers]", [array] if is_single else list(array))
        names = [spec.name] if is_single else [f"{spec.name}[{index}]" for index in range(len(rows))]
        columns.append([validate_array(spec, row, name) for row, name in zip(rows, names, strict=True)])
    counts = {len(samples) for samples in columns}
    if len(counts) > 1:
        raise InvalidData(f"The inputs contain {sorted(counts)} samples.", fix="Give the same number of each input.")
    return list(zip(*columns, strict=True))


def validate_array(spec: Array, array: Numbers, where: str) -> Numbers:
    """Check one input of one sample, which messages call ``where``, and return it converted to the model's type.

    Raises:
        InvalidData: the shape is wrong, the type would lose information, or values are non-finite or out of bounds.
    """
    sizes = spec.shape[1:]
    if array.ndim != len(sizes) or not all(map(SizeRange.allows, sizes, array.shape)):
        raise _rejection(where, f"has the shape [{', '.join(map(str, array.shape))}]", spec)
    dtype = np.dtype(spec.dtype)
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "b") != (dtype.kind == "b"):
        raise _rejection(where, f"is of type {array.dtype}", spec)
    if array.dtype.kind == "f" and dtype.kind in "iu":
        raise _rejection(where, f"is of type {array.dtype}, but the model takes integers", spec)
    if not _is_finite(array):
        raise _rejection(where, "contains NaN or infinity", spec)
    with np.errstate(over="ignore"):
        converted: Numbers = array.astype(dtype)
    if not _is_finite(converted) or (dtype.kind in "iu" and bool((converted != array).any())):
        raise _rejection(where, f"contains a number that {spec.dtype} cannot represent", spec)
    if converted.size and spec.lowest is not None and converted.min() < spec.lowest:
        raise _rejection(where, f"contains {converted.min()}", spec)
    if converted.size and spec.highest is not None and converted.max() > spec.highest:
        raise _rejection(where, f"contains {converted.max()}", spec)
    return converted


def require_single_input(description: Description) -> Array:
    """Return the only input of a model.

    Raises:
        InvalidConfig: the model takes several inputs.
    """
    if len(description.inputs) != 1:
        names = ", ".join(spec.name for spec in description.inputs)
        raise InvalidConfig(
            f"The model has several inputs ({names}), but only one was given.", fix="Give JSON with the inputs by name."
        )
    return description.inputs[0]


def text_sample(description: Description, text: str, where: str) -> Sample:
    """Make a sample from a text.

    Raises:
        InvalidData: the text is empty, longer than the model's context, or not valid Unicode.
    """
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise InvalidData(f"{where} contains a lone surrogate: {safe_repr(text)}.", fix="Send valid Unicode.") from None
    max_bytes = description.reading.length
    if not content or (max_bytes is not None and len(content) > max_bytes):
        raise InvalidData(
            f"{where} has {len(content)} bytes.",
            why="The model would ignore everything beyond its context.",
            fix=f"Give 1 to {max_bytes} bytes." if max_bytes else "Give at least one byte.",
        )
    spec = require_single_input(description)
    return (validate_array(spec, np.frombuffer(content, dtype=np.uint8), where),)


def row_sample(description: Description, row: Mapping[str, Any], where: str) -> Sample:
    """Make a sample from a mapping of column name to number.

    Raises:
        InvalidData: a column is missing, unknown, or not a number.
    """
    columns = description.reading.columns
    for name in row:
        if name not in columns:
            hint = did_you_mean(str(name), columns).strip() or f"Columns are {', '.join(columns[:5])} ..."
            raise InvalidData(f"{where} has a column {safe_repr(name)}, which is unknown to the model.", fix=hint)
    missing = [name for name in columns if name not in row]
    if missing:
        raise InvalidData(
            f"{where} lacks {format_count(len(missing), 'column')}: {', '.join(missing[:3])}.",
            fix="Give every column that the model was trained with.",
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
        raise InvalidConfig(f"inputs is {safe_repr(value)}.", fix=f"Give an object with the fields {names}.")
    inputs = cast("dict[str, Any]", value)
    return split_samples(description, [_to_array(inputs[spec.name], spec.name) for spec in specs])


def _samples_from_text(description: Description, value: Any) -> list[Sample]:
    texts: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidConfig(f"text is {safe_repr(value)}.", fix="Give a string, or a list of strings.")
    return [text_sample(description, text, f"text[{index}]") for index, text in enumerate(texts)]


def _samples_from_rows(description: Description, value: Any) -> list[Sample]:
    rows: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise InvalidConfig(f"rows is {safe_repr(value)}.", fix="Give a list of objects: column name to number.")
    return [row_sample(description, row, f"rows[{index}]") for index, row in enumerate(rows)]


def _to_array(value: Any, where: str) -> Numbers:
    """Convert nested lists of numbers to an array.

    Raises:
        InvalidData: the lists contain other values, are ragged, or are nested too deep.
    """
    flat: list[int | float | bool] = []
    shape = _flatten(value, where, flat, 16)
    types = {type(number) for number in flat}
    if bool in types and len(types) > 1:
        raise InvalidData(f"{where} mixes numbers with true and false.", fix="Give numbers.")
    try:
        array = np.array(flat, dtype=np.float64 if float in types or not types else None)
    except OverflowError:
        raise InvalidData(f"{where} contains an integer that is too large.", fix="Give numbers in range.") from None
    if array.dtype.kind == "O":
        raise InvalidData(f"{where} contains an integer that is too large.", fix="Give numbers in range.")
    return array.reshape(shape)


def _flatten(value: Any, where: str, flat: list[Any], max_depth: int) -> tuple[int, ...]:
    """Append the numbers in nested lists to ``flat`` and return the shape of the lists."""
    if isinstance(value, list):
        if max_depth == 0:
            raise InvalidData(f"{where} is nested too deep.", fix="Give lists as deep as the model's input.")
        items = cast("list[Any]", value)
        shapes = [_flatten(item, f"{where}[{index}]", flat, max_depth - 1) for index, item in enumerate(items)]
        if any(shape != shapes[0] for shape in shapes):
            index = next(index for index, shape in enumerate(shapes) if shape != shapes[0])
            raise InvalidData(f"{where}[{index}] has another size than {where}[0].", fix="Give lists of one size.")
        return (len(items), *(shapes[0] if shapes else ()))
    if not isinstance(value, int | float):
        raise InvalidData(f"{where} is {safe_repr(value)}.", fix="Give a number.")
    flat.append(value)
    return ()


def _is_finite(array: Numbers) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _rejection(where: str, problem: str, spec: Array) -> InvalidData:
    sample = f"{spec.dtype}[{', '.join(map(str, spec.shape[1:]))}]"
    low, high = spec.lowest, spec.highest
    bounds = "" if low is None or high is None else f", values from {low:g} to {high:g}"
    return InvalidData(f"{where} {problem}.", fix=f"A sample of {spec.name} is {sample}{bounds}, with finite values.")


def probabilities(scores: Sequence[float]) -> list[float]:
    """Return the softmax of logits or log-probabilities."""
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]
