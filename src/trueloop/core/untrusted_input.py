"""Parse untrusted input (JSON of a page, TOML of a file) into a frozen dataclass: strict, bounded, no code is run.

Every number, text and variable-length tuple declares its bounds, so that no request can cost more than they allow:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Request:
        batch: Annotated[int, Bounds(1, 4096), "examples per micro-batch"] = 32
        sampler: Literal["random", "sequential"] = "random"
        widths: Annotated[tuple[Annotated[int, Bounds(1, 64)], ...], Bounds(0, 4)] = (8, 8)
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from trueloop.core.errors import InvalidConfig

Record = TypeVar("Record")

TYPE_NAMES: Final[dict[Any, str]] = {int: "int", float: "float", str: "text"}
MAX_REPR_CHARS: Final = 60  # of an invalid value in an error


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds of a number, of the length of a text, or of the number of items of a tuple."""

    lowest: float
    highest: float


def parse_record(kind: type[Record], data: Mapping[str, Any], *, where: str = "") -> Record:
    """Parse ``data`` into a record; absent fields take their defaults.

    Args:
        kind: a frozen dataclass whose fields are bool, int, float, str, Literal, tuples of these, records, or None.
        data: as `json.loads` or `tomllib.load` return it; a list is accepted for a tuple, an int for a float.
        where: prefix of field names in errors: "config".

    Raises:
        InvalidConfig: a field is unknown, missing, of another type, not finite or out of bounds; or the record's own
            validation fails.
    """
    if not isinstance(cast("Any", data), Mapping):
        raise InvalidConfig(f"{where or 'This'} is {safe_repr(data)}.", fix="It must be an object of named fields.")
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cast("Any", kind))}
    for name in data:
        if name not in fields:
            close = difflib.get_close_matches(str(name), fields, 1)
            suggestion = f"Did you mean {close[0]!r}? " if close else ""
            unknown = safe_repr(_join_path(where, str(name)))
            raise InvalidConfig(f"Unknown field {unknown}.", fix=f"{suggestion}Known fields: {', '.join(fields)}.")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _parse_value(hints[name], data[name], _join_path(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidConfig(
                f"{_join_path(where, name)} is missing.", fix=f"Give {_describe_expected(hints[name])}."
            )
    return kind(**values)


def describe_fields(kind: type[Any]) -> list[dict[str, Any]]:
    """Describe the fields of a record, in order, for the controls of a page.

    Returns:
        For each field its ``name``, ``kind`` ("bool", "int", "float", "text", "choice", "list", "record"), ``help``,
        and, where they apply, ``default``, ``lowest``, ``highest``, ``choices``, ``optional``, ``item``, ``fields``.

    Raises:
        TypeError: a field has no bounds or an unsupported type, which is a bug in the record.
    """
    hints = get_type_hints(kind, include_extras=True)
    described: list[dict[str, Any]] = []
    for field in dataclasses.fields(kind):
        entry: dict[str, Any] = {"name": field.name, **_describe_hint(hints[field.name])}
        if field.default is not dataclasses.MISSING:
            entry["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING and entry["kind"] != "record":
            entry["default"] = field.default_factory()
        described.append(entry)
    return described


def _describe_hint(hint: Any) -> dict[str, Any]:
    kind, bounds, help_text = _split_annotation(hint)
    entry: dict[str, Any] = {"help": help_text}
    if bounds is not None:
        entry |= {"lowest": bounds.lowest, "highest": bounds.highest}
    if get_origin(kind) in (Union, UnionType):
        inner = _describe_hint(_without_none(kind))
        return {**inner, **entry, "help": help_text or inner["help"], "optional": True}
    return {**entry, **_describe_kind(kind, bounds)}


def _describe_kind(kind: Any, bounds: Bounds | None) -> dict[str, Any]:
    if get_origin(kind) is Literal:
        return {"kind": "choice", "choices": list(get_args(kind))}
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        limits = _require_bounds(bounds, kind) if parts[-1] is ... else Bounds(len(parts), len(parts))
        ends = {"lowest": limits.lowest, "highest": limits.highest}
        return {"kind": "list", **ends, "item": _describe_hint(parts[0])}
    if dataclasses.is_dataclass(kind):
        return {"kind": "record", "fields": describe_fields(cast("type[Any]", kind))}
    if kind is bool:
        return {"kind": "bool"}
    if kind not in TYPE_NAMES:
        raise TypeError(f"{kind} is not a supported field type")
    _require_bounds(bounds, kind)
    return {"kind": TYPE_NAMES[kind]}


def _require_bounds(bounds: Bounds | None, kind: Any) -> Bounds:
    if bounds is None:
        raise TypeError(f"{kind} has no bounds: Annotated[{kind}, Bounds(lowest, highest)]")
    return bounds


def _split_annotation(hint: Any) -> tuple[Any, Bounds | None, str]:
    """Split an annotation into its type, bounds and help text."""
    if get_origin(hint) is not Annotated:
        return hint, None, ""
    kind, *extras = get_args(hint)
    bounds = next((extra for extra in extras if isinstance(extra, Bounds)), None)
    return kind, bounds, next((extra for extra in extras if isinstance(extra, str)), "")


def _parse_value(hint: Any, value: Any, path: str) -> Any:
    kind, bounds, _ = _split_annotation(hint)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        inner = _without_none(kind)
        return None if value is None else _parse_value(Annotated[inner, bounds] if bounds else inner, value, path)
    if origin is Literal:
        return _parse_choice(get_args(kind), value, path)
    if origin is tuple:
        return _parse_items(get_args(kind), bounds, value, path)
    return _parse_leaf(kind, bounds, value, path)


def _parse_leaf(kind: Any, bounds: Bounds | None, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return parse_record(cast("type[Any]", kind), value, where=path)
    if kind is bool:
        if not isinstance(value, bool):
            raise _mismatch_error(path, value, "true or false")
        return value
    if kind is str:
        return _parse_text(_require_bounds(bounds, kind), value, path)
    return _parse_number(kind, _require_bounds(bounds, kind), value, path)


def _without_none(kind: Any) -> Any:
    return next(part for part in get_args(kind) if part is not NoneType)


def _parse_number(kind: type[int | float], bounds: Bounds, value: Any, path: str) -> int | float:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    fits = is_int or (kind is float and isinstance(value, float) and math.isfinite(value))
    if not fits or not bounds.lowest <= value <= bounds.highest:
        raise _mismatch_error(path, value, _describe_range(kind, bounds))
    return kind(value)


def _parse_text(bounds: Bounds, value: Any, path: str) -> str:
    if not isinstance(value, str) or not bounds.lowest <= len(value) <= bounds.highest or not value.isprintable():
        raise _mismatch_error(path, value, f"a text of {bounds.lowest:g} to {bounds.highest:g} printable characters")
    return value


def _parse_choice(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    close = difflib.get_close_matches(safe_repr(value).strip("'"), [str(choice) for choice in choices], 1)
    suggestion = f"{close[0]!r} perhaps; " if close else ""
    raise _mismatch_error(path, value, f"{suggestion}one of {', '.join(map(repr, choices))}")


def _parse_items(parts: tuple[Any, ...], bounds: Bounds | None, value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _mismatch_error(path, value, "a list")
    items = cast("list[Any] | tuple[Any, ...]", value)
    if parts[-1] is ...:
        limits = _require_bounds(bounds, tuple)
        kinds: tuple[Any, ...] = (parts[0],) * min(len(items), int(limits.highest) + 1)
    else:
        limits, kinds = Bounds(len(parts), len(parts)), parts
    if not limits.lowest <= len(items) <= limits.highest:
        raise InvalidConfig(
            f"{path} has {len(items)} items.", fix=f"It must have {limits.lowest:g} to {limits.highest:g}."
        )
    return tuple(
        _parse_value(kind, item, f"{path}[{index}]")
        for index, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _describe_expected(hint: Any) -> str:
    kind, bounds, _ = _split_annotation(hint)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if kind in (int, float) and bounds:
        return _describe_range(kind, bounds)
    return "true or false" if kind is bool else "a text" if kind is str else "a value for it"


def _describe_range(kind: Any, bounds: Bounds) -> str:
    return f"a {'whole ' if kind is int else ''}number from {bounds.lowest:.15g} to {bounds.highest:.15g}"


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
