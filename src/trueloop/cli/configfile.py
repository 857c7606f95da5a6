"""Read settings from a TOML file, and check their keys and types."""

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
    values: dict[str, Any] = {}
    for key, value in _flatten(read_toml(path)):
        if key not in settings:
            raise _unknown_key_error(key, path, settings)
        values[key] = _convert(value, settings[key], path)
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file of settings.

    Raises:
        InvalidConfig: the file does not exist or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(
            f"Cannot read the settings file {str(path)!r}: {error.strerror}.", fix="Pass an existing TOML file."
        ) from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, too large a number or too deep nesting
        raise InvalidConfig(
            f"{path} is not TOML: {error}.", fix='Write settings as TOML: lr = 0.01, "text".'
        ) from error


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}".replace("-", "_")
        if isinstance(value, dict):
            yield from _flatten(cast("dict[str, Any]", value), f"{key}.")
        else:
            yield key, value


def _unknown_key_error(key: str, path: Path, settings: Mapping[str, Setting]) -> InvalidConfig:
    same_name = [setting for setting in settings if setting.rpartition(".")[2] == key.rpartition(".")[2]]
    close = same_name or difflib.get_close_matches(key, settings, n=1)
    if close:
        fix = f"Did you mean {close[0]!r}?"
    else:
        table = key.rpartition(".")[0]
        in_table = [setting for setting in settings if setting.rpartition(".")[0] == table] or list(settings)
        fix = f"The settings are {', '.join(in_table)}."
    return InvalidConfig(f"{path} sets {key!r}, which is not a setting.", fix=fix)


def _convert(value: Any, setting: Setting, path: Path) -> Any:
    converted = _convert_to(value, setting.kind)
    if converted is _MISFIT:
        raise InvalidConfig(
            f"{path} sets {setting.key} = {value!r}, which is not {_describe_type(setting.kind)}.",
            fix=f"The recipe's default is {format_value(setting.value)}.",
        )
    return converted


_MISFIT = object()


def _convert_to(value: Any, kind: Any) -> Any:
    """Return ``value`` as the type ``kind``, or `_MISFIT`. TOML has no null, so the text "none" means None."""
    if get_origin(kind) in (Union, UnionType):
        # None is tried first, since "none" is a valid text as well
        members = sorted(get_args(kind), key=lambda member: member is not NoneType)
        values = [fit for member in members if (fit := _convert_to(value, member)) is not _MISFIT]
        return values[0] if values else _MISFIT
    if get_origin(kind) is tuple:
        return _convert_items(value, get_args(kind))
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else _MISFIT
    if kind is NoneType:
        return None if value == "none" else _MISFIT
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else _MISFIT  # isinstance would accept True as an int


def _convert_items(value: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(value, list):
        return _MISFIT
    items = cast("list[Any]", value)
    if ... in kinds:
        kinds = (kinds[0],) * len(items)
    if len(kinds) != len(items):
        return _MISFIT
    converted = tuple(_convert_to(item, kind) for item, kind in zip(items, kinds, strict=True))
    return _MISFIT if _MISFIT in converted else converted


def _describe_type(kind: Any) -> str:
    """Describe a type for an error message: 'a number or "none"', "one of 'off', 'bf16'"."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_describe_type(member) for member in get_args(kind))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        count = "" if ... in kinds else f"{len(kinds)} "
        return f"a list of {count}items, each {_describe_type(kinds[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: '"none"'}[kind]
