"""Parse untrusted input (JSON of a page, TOML of a file) into a frozen dataclass: strict, bounded, no code is run.

Every number, text and variable-length tuple declares its bounds, so that no request can cost more than they allow:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Request:
        batch: Annotated[int, Bounds(1, 4096), "examples per micro-batch"] = 32
        sampler: Literal["random", "sequential"] = "random"
        widths: Annotated[tuple[Annotated[int, Bounds(1, 64)], ...], Bounds(0, 4)] = (8, 8)
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import did_you_mean

Record = TypeVar("Record")

TYPE_NAMES: Final[dict[Any, str]] = {int: "int", float: "float", str: "text"}
MAX_REPR_CHARS: Final = 60  # of an invalid value in an error


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds of a number, of the length of a text, or of the number of items of a tuple."""

    lowest: float
    highest: float


def parse_record(record_type: type[Record], data: Mapping[str, Any], *, where: str = "") -> Record:
    """Parse ``data`` into a record; absent fields take their defaults.

    Args:
        record_type: a frozen dataclass with fields of type bool, int, float, str, Literal, None, tuple, or record.
        data: as `json.loads` or `tomllib.load` return it; a list is accepted for a tuple, an int for a float.
        where: prefix of field names in errors: "config".

    Raises:
        InvalidConfig: a field is unknown, missing, of another type, not finite or out of bounds; or the record's own
            validation fails.
    """
    if not isinstance(cast("Any", data), Mapping):
        raise InvalidConfig(f"{where or 'The input'} is {safe_repr(data)}.", fix="Give an object of named fields.")
    hints = get_type_hints(record_type, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cast("Any", record_type))}
    for name in data:
        if name not in fields:
            unknown = safe_repr(_join_path(where, str(name)))
            suggestion = did_you_mean(str(name), fields)
            raise InvalidConfig(f"Unknown field {unknown}.", fix=f"{suggestion}Known fields: {', '.join(fields)}.")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _parse_value(hints[name], data[name], _join_path(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidConfig(
                f"{_join_path(where, name)} is missing.", fix=f"Give {_describe_expected(hints[name])}."
            )
    return record_type(**values)


def describe_fields(record_type: type[Any]) -> list[dict[str, Any]]:
    """Describe the fields of a record, in order, for the controls of a page.

    Returns:
        For each field its ``name``, ``kind`` ("bool", "int", "float", "text", "choice", "list", "record"), ``help``,
        and, where they apply, ``default``, ``lowest``, ``highest``, ``choices``, ``optional``, ``item``, ``fields``.

    Raises:
        TypeError: a field has no bounds or an unsupported type, which is a bug in the record.
    """
    hints = get_type_hints(record_type, include_extras=True)
    descriptions: list[dict[str, Any]] = []
    for field in dataclasses.fields(record_type):
        entry: dict[str, Any] = {"name": field.name, **_describe_hint(hints[field.name])}
        if field.default is not dataclasses.MISSING:
            entry["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING and entry["kind"] != "record":
            entry["default"] = field.default_factory()
        descriptions.append(entry)
    return descriptions


def _describe_hint(hint: Any) -> dict[str, Any]:
    field_type, bounds, help_text = _split_annotation(hint)
    entry: dict[str, Any] = {"help": help_text}
    if bounds is not None:
        entry |= {"lowest": bounds.lowest, "highest": bounds.highest}
    if get_origin(field_type) in (Union, UnionType):
        inner = _describe_hint(_without_none(field_type))
        return {**inner, **entry, "help": help_text or inner["help"], "optional": True}
    return {**entry, **_describe_type(field_type, bounds)}


def _describe_type(field_type: Any, bounds: Bounds | None) -> dict[str, Any]:
    if get_origin(field_type) is Literal:
        return {"kind": "choice", "choices": list(get_args(field_type))}
    if get_origin(field_type) is tuple:
        item_types = get_args(field_type)
        length = (
            _require_bounds(bounds, field_type) if item_types[-1] is ... else Bounds(len(item_types), len(item_types))
        )
        limits = {"lowest": length.lowest, "highest": length.highest}
        return {"kind": "list", **limits, "item": _describe_hint(item_types[0])}
    if dataclasses.is_dataclass(field_type):
        return {"kind": "record", "fields": describe_fields(cast("type[Any]", field_type))}
    if field_type is bool:
        return {"kind": "bool"}
    if field_type not in TYPE_NAMES:
        raise TypeError(f"{field_type} is not a supported field type")
    _require_bounds(bounds, field_type)
    return {"kind": TYPE_NAMES[field_type]}


def _require_bounds(bounds: Bounds | None, field_type: Any) -> Bounds:
    if bounds is None:
        raise TypeError(f"{field_type} has no bounds: Annotated[{field_type}, Bounds(lowest, highest)]")
    return bounds


def _split_annotation(hint: Any) -> tuple[Any, Bounds | None, str]:
    """Split an annotation into its type, bounds and help text."""
    if get_origin(hint) is not Annotated:
        return hint, None, ""
    field_type, *extras = get_args(hint)
    bounds = next((extra for extra in extras if isinstance(extra, Bounds)), None)
    return field_type, bounds, next((extra for extra in extras if isinstance(extra, str)), "")


def _parse_value(hint: Any, value: Any, path: str) -> Any:
    field_type, bounds, _ = _split_annotation(hint)
    origin = get_origin(field_type)
    if origin in (Union, UnionType):
        inner = _without_none(field_type)
        return None if value is None else _parse_value(Annotated[inner, bounds] if bounds else inner, value, path)
    if origin is Literal:
        return _parse_choice(get_args(field_type), value, path)
    if origin is tuple:
        return _parse_items(get_args(field_type), bounds, value, path)
    return _parse_leaf(field_type, bounds, value, path)


def _parse_leaf(field_type: Any, bounds: Bounds | None, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(field_type):
        return parse_record(cast("type[Any]", field_type), value, where=path)
    if field_type is bool:
        if not isinstance(value, bool):
            raise _mismatch_error(path, value, "true or false")
        return value
    if field_type is str:
        return _parse_text(_require_bounds(bounds, field_type), value, path)
    return _parse_number(field_type, _require_bounds(bounds, field_type), value, path)


def _without_none(field_type: Any) -> Any:
    return next(part for part in get_args(field_type) if part is not NoneType)


def _parse_number(field_type: type[int | float], bounds: Bounds, value: Any, path: str) -> int | float:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    has_type = is_int or (field_type is float and isinstance(value, float) and math.isfinite(value))
    if not has_type or not bounds.lowest <= value <= bounds.highest:
        raise _mismatch_error(path, value, _describe_range(field_type, bounds))
    return field_type(value)


def _parse_text(bounds: Bounds, value: Any, path: str) -> str:
    if not isinstance(value, str) or not bounds.lowest <= len(value) <= bounds.highest or not value.isprintable():
        raise _mismatch_error(path, value, f"a text of {bounds.lowest:g} to {bounds.highest:g} printable characters")
    return value


def _parse_choice(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    suggestion = did_you_mean(safe_repr(value).strip("'"), map(str, choices))
    error = _mismatch_error(path, value, f"one of {', '.join(map(repr, choices))}")
    raise InvalidConfig(error.what, fix=f"{suggestion}{error.fix}")


def _parse_items(item_types: tuple[Any, ...], bounds: Bounds | None, value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _mismatch_error(path, value, "a list")
    items = cast("list[Any] | tuple[Any, ...]", value)
    if item_types[-1] is ...:
        length = _require_bounds(bounds, tuple)
        item_types = (item_types[0],) * min(len(items), int(length.highest) + 1)
    else:
        length = Bounds(len(item_types), len(item_types))
    if not length.lowest <= len(items) <= length.highest:
        raise InvalidConfig(
            f"{path} has {len(items)} items.", fix=f"It must have {length.lowest:g} to {length.highest:g}."
        )
    return tuple(
        _parse_value(item_type, item, f"{path}[{index}]")
        for index, (item_type, item) in enumerate(zip(item_types, items, strict=True))
    )


def _describe_expected(hint: Any) -> str:
    field_type, bounds, _ = _split_annotation(hint)
    if get_origin(field_type) is Literal:
        return f"one of {', '.join(map(repr, get_args(field_type)))}"
    if field_type in (int, float) and bounds:
        return _describe_range(field_type, bounds)
    return "true or false" if field_type is bool else "a text" if field_type is str else "a value"


def _describe_range(field_type: Any, bounds: Bounds) -> str:
    return f"a {'whole ' if field_type is int else ''}number from {bounds.lowest:.15g} to {bounds.highest:.15g}"


def _mismatch_error(path: str, value: Any, expected: str) -> InvalidConfig:
    return InvalidConfig(f"{path} is {safe_repr(value)}.", fix=f"It must be {expected}.")


def safe_repr(value: Any) -> str:
    """Return the repr of an untrusted value, truncated to `MAX_REPR_CHARS`."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int with more digits than Python converts
        text = f"a {type(value).__name__} too large to print"
    return text if len(text) <= MAX_REPR_CHARS else text[:MAX_REPR_CHARS] + "..."


def _join_path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
