"""Reads settings from a TOML file, and checks their keys and types."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

from trueloop.app.training.recipe_settings import Setting, format_value
from trueloop.core.errors import InvalidConfig


def read_config(path: Path, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the settings in a TOML file, by key, converted to their types.

    Args:
        path: the file; its tables are the tables of the settings: ``[optim]``, ``[options]``.
        settings: the available settings.

    Raises:
        InvalidConfig: the file does not exist or is not TOML, a key is unknown, or a value has the wrong type.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(
            f"Cannot read the settings file {str(path)!r}: {error.strerror}.",
            fix="Pass an existing file with --config.",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"{path} is not TOML: {error}.", fix='Write settings as TOML: lr = 0.01, "text".'
        ) from error
    values: dict[str, Any] = {}
    for key, value in _leaves(document):
        if key not in settings:
            raise _unknown(key, path, settings)
        values[key] = _convert(value, settings[key], path)
    return values


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}".replace("-", "_")
        if isinstance(value, dict):
            yield from _leaves(cast("dict[str, Any]", value), f"{key}.")
        else:
            yield key, value


def _unknown(key: str, path: Path, settings: Mapping[str, Setting]) -> InvalidConfig:
    same_name = [known for known in settings if known.rpartition(".")[2] == key.rpartition(".")[2]]
    close = same_name or difflib.get_close_matches(key, settings, n=1)
    if close:
        fix = f"Did you mean {close[0]!r}?"
    else:
        table = key.rpartition(".")[0]
        in_table = [known for known in settings if known.rpartition(".")[0] == table] or list(settings)
        fix = f"The settings are {', '.join(in_table)}."
    return InvalidConfig(f"{path} sets {key!r}, which is not a setting.", fix=fix)


def _convert(value: Any, setting: Setting, path: Path) -> Any:
    fitting = _fit(value, setting.kind)
    if fitting is _MISFIT:
        raise InvalidConfig(
            f"{path} sets {setting.key} = {value!r}, which is not {_describe_type(setting.kind)}.",
            fix=f"The recipe's default is {format_value(setting.value)}.",
        )
    return fitting


_MISFIT = object()


def _fit(value: Any, kind: Any) -> Any:
    """Return ``value`` as ``kind``, or `_MISFIT`. TOML has no null, so the text "none" means None."""
    if get_origin(kind) in (Union, UnionType):
        parts = sorted(
            get_args(kind), key=lambda part: part is not NoneType
        )  # None first: "none" is a valid text as well
        fits = [fit for part in parts if (fit := _fit(value, part)) is not _MISFIT]
        return fits[0] if fits else _MISFIT
    if get_origin(kind) is tuple:
        return _fit_tuple(value, get_args(kind))
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else _MISFIT
    if kind is NoneType:
        return None if value == "none" else _MISFIT
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else _MISFIT  # isinstance would accept True as an int


def _fit_tuple(value: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(value, list):
        return _MISFIT
    items = cast("list[Any]", value)
    if ... in kinds:
        kinds = (kinds[0],) * len(items)
    if len(kinds) != len(items):
        return _MISFIT
    fits = tuple(_fit(item, kind) for item, kind in zip(items, kinds, strict=True))
    return _MISFIT if _MISFIT in fits else fits


def _describe_type(kind: Any) -> str:
    """Describe a type for an error message: 'a number or "none"', "one of 'off', 'bf16'"."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_describe_type(part) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        count = "" if ... in kinds else f"{len(kinds)} "
        return f"a list of {count}items, each {_describe_type(kinds[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: '"none"'}[kind]
