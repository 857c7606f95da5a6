"""A frozen dataclass out of what a stranger sent: JSON of a page, TOML of a file. Strict, bounded, and no code is run.

Each number, text and tuple of any length carries its bounds, so that no request can cost more than its record allows:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Asked:
        batch: Annotated[int, Within(1, 4096), "examples per micro-batch"] = 32
        sampler: Literal["random", "sequential"] = "random"
        widths: Annotated[tuple[Annotated[int, Within(1, 64)], ...], Within(0, 4)] = (8, 8)
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from trueloop.core.errors import InvalidConfig

Record = TypeVar("Record")

NAMES: Final[dict[Any, str]] = {int: "int", float: "float", str: "text"}
SHOWN: Final = 60  # characters of an offending value that an error quotes


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds, both included: of a number, of the length of a text, of how many a tuple has."""

    lowest: float
    highest: float


def read(kind: type[Record], given: Mapping[str, Any], *, where: str = "") -> Record:
    """Make a record of ``given``; what it does not name takes the record's default.

    Args:
        kind: a frozen dataclass whose fields are bool, int, float, str, Literal, tuples of these, records, or None.
        given: as `json.loads` or `tomllib.load` return it; a list is taken for a tuple, a whole number for a float.
        where: what errors call the whole, where it is part of something: "config".

    Raises:
        InvalidConfig: an unknown field, one that is missing, of another type, not finite or out of bounds; or what the
            record itself refuses.
    """
    if not isinstance(cast("Any", given), Mapping):
        raise InvalidConfig(f"{where or 'This'} is {shown(given)}.", fix="It must be an object of named fields.")
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cast("Any", kind))}
    for name in given:
        if name not in fields:
            close = difflib.get_close_matches(str(name), fields, 1)
            meant = f"Did you mean {close[0]!r}? " if close else ""
            unknown = shown(_path(where, str(name)))
            raise InvalidConfig(f"There is no {unknown}.", fix=f"{meant}Known: {', '.join(fields)}.")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in given:
            values[name] = _value(hints[name], given[name], _path(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidConfig(f"{_path(where, name)} is missing.", fix=f"Give {_wanted(hints[name])}.")
    return kind(**values)


def describe(kind: type[Any]) -> list[dict[str, Any]]:
    """Return the fields of a record for the controls of a page, in their order.

    Returns:
        For each field its ``name``, ``kind`` ("bool", "int", "float", "text", "choice", "list", "record"), ``help``,
        and where they apply ``default``, ``lowest``, ``highest``, ``choices``, ``optional``, ``item``, ``fields``.

    Raises:
        TypeError: a field without bounds, or of a type that cannot be asked for; a mistake of the record's author.
    """
    hints = get_type_hints(kind, include_extras=True)
    described: list[dict[str, Any]] = []
    for field in dataclasses.fields(kind):
        entry: dict[str, Any] = {"name": field.name, **_described(hints[field.name])}
        if field.default is not dataclasses.MISSING:
            entry["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING and entry["kind"] != "record":
            entry["default"] = field.default_factory()
        described.append(entry)
    return described


def _described(hint: Any) -> dict[str, Any]:
    kind, bounds, words = _apart(hint)
    entry: dict[str, Any] = {"help": words}
    if bounds is not None:
        entry |= {"lowest": bounds.lowest, "highest": bounds.highest}
    if get_origin(kind) in (Union, UnionType):
        inner = _described(_without_none(kind))
        return {**inner, **entry, "help": words or inner["help"], "optional": True}
    return {**entry, **_described_kind(kind, bounds)}


def _described_kind(kind: Any, bounds: Within | None) -> dict[str, Any]:
    if get_origin(kind) is Literal:
        return {"kind": "choice", "choices": list(get_args(kind))}
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        limits = _bounded(bounds, kind) if parts[-1] is ... else Within(len(parts), len(parts))
        ends = {"lowest": limits.lowest, "highest": limits.highest}
        return {"kind": "list", **ends, "item": _described(parts[0])}
    if dataclasses.is_dataclass(kind):
        return {"kind": "record", "fields": describe(cast("type[Any]", kind))}
    if kind is bool:
        return {"kind": "bool"}
    if kind not in NAMES:
        raise TypeError(f"{kind} cannot be asked for")
    _bounded(bounds, kind)
    return {"kind": NAMES[kind]}


def _bounded(bounds: Within | None, kind: Any) -> Within:
    if bounds is None:
        raise TypeError(f"{kind} has no bounds: Annotated[{kind}, Within(lowest, highest)]")
    return bounds


def _apart(hint: Any) -> tuple[Any, Within | None, str]:
    """Part an annotation into its type, its bounds and its words."""
    if get_origin(hint) is not Annotated:
        return hint, None, ""
    kind, *extras = get_args(hint)
    bounds = next((extra for extra in extras if isinstance(extra, Within)), None)
    return kind, bounds, next((extra for extra in extras if isinstance(extra, str)), "")


def _value(hint: Any, value: Any, path: str) -> Any:
    kind, bounds, _ = _apart(hint)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        inner = _without_none(kind)
        return None if value is None else _value(Annotated[inner, bounds] if bounds else inner, value, path)
    if origin is Literal:
        return _choice(get_args(kind), value, path)
    if origin is tuple:
        return _items(get_args(kind), bounds, value, path)
    return _leaf(kind, bounds, value, path)


def _leaf(kind: Any, bounds: Within | None, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return read(cast("type[Any]", kind), value, where=path)
    if kind is bool:
        if not isinstance(value, bool):
            raise _refused(path, value, "true or false")
        return value
    if kind is str:
        return _text(_bounded(bounds, kind), value, path)
    return _number(kind, _bounded(bounds, kind), value, path)


def _without_none(kind: Any) -> Any:
    return next(part for part in get_args(kind) if part is not NoneType)


def _number(kind: type[int | float], bounds: Within, value: Any, path: str) -> int | float:
    whole = isinstance(value, int) and not isinstance(value, bool)
    fits = whole or (kind is float and isinstance(value, float) and math.isfinite(value))
    if not fits or not bounds.lowest <= value <= bounds.highest:
        raise _refused(path, value, _numbers(kind, bounds))
    return kind(value)


def _text(bounds: Within, value: Any, path: str) -> str:
    if not isinstance(value, str) or not bounds.lowest <= len(value) <= bounds.highest or not value.isprintable():
        raise _refused(path, value, f"a text of {bounds.lowest:g} to {bounds.highest:g} printable characters")
    return value


def _choice(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    close = difflib.get_close_matches(shown(value).strip("'"), [str(choice) for choice in choices], 1)
    meant = f"{close[0]!r} perhaps; " if close else ""
    raise _refused(path, value, f"{meant}one of {', '.join(map(repr, choices))}")


def _items(parts: tuple[Any, ...], bounds: Within | None, value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _refused(path, value, "a list")
    items = cast("list[Any] | tuple[Any, ...]", value)
    if parts[-1] is ...:
        limits = _bounded(bounds, tuple)
        kinds: tuple[Any, ...] = (parts[0],) * min(len(items), int(limits.highest) + 1)
    else:
        limits, kinds = Within(len(parts), len(parts)), parts
    if not limits.lowest <= len(items) <= limits.highest:
        raise InvalidConfig(
            f"{path} has {len(items)} items.", fix=f"It must have {limits.lowest:g} to {limits.highest:g}."
        )
    return tuple(
        _value(kind, item, f"{path}[{place}]") for place, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _wanted(hint: Any) -> str:
    kind, bounds, _ = _apart(hint)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if kind in (int, float) and bounds:
        return _numbers(kind, bounds)
    return "true or false" if kind is bool else "a text" if kind is str else "a value for it"


def _numbers(kind: Any, bounds: Within) -> str:
    return f"a {'whole ' if kind is int else ''}number from {bounds.lowest:.15g} to {bounds.highest:.15g}"


def _refused(path: str, value: Any, wanted: str) -> InvalidConfig:
    return InvalidConfig(f"{path} is {shown(value)}.", fix=f"It must be {wanted}.")


def shown(value: Any) -> str:
    """Quote what a stranger sent, as much of it as an error can."""
    try:
        said = repr(value)
    except (ValueError, RecursionError):  # a whole number of more digits than Python writes out
        said = f"a {type(value).__name__} too big to write"
    return said if len(said) <= SHOWN else said[:SHOWN] + "..."


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
