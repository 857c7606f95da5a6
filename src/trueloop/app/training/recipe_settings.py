"""Collect the settings of a recipe from its frozen dataclasses, override them, and convert them to flags.

``recipe.train.optim.lr`` is the setting ``optim.lr``: the flag ``--optim.lr 0.01``, or ``[optim] lr = 0.01`` in a TOML
file. The recipe's own options have the prefix of their table, ``options.width``, so they never collide with a training
setting. Defaults are the recipe's values, not those of the classes.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter, Token
from docstring_parser import parse_from_object

from trueloop.app.option_types import read_whole_number
from trueloop.core.errors import InvalidConfig

if TYPE_CHECKING:
    from trueloop.recipes.recipe import Recipe

OPTIONS = "options"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a recipe."""

    key: str
    """Dotted key, as in TOML: "optim.lr"."""
    kind: Any
    """The type that the value must have, as a resolved annotation."""
    value: Any
    """Value of the setting in the recipe."""
    doc: str
    """Docstring of the dataclass field."""
    table: str
    """First line of the docstring of the field's dataclass."""

    @property
    def flag(self) -> str:
        """The command line flag: "--optim.weight-decay"."""
        return "--" + self.key.replace("_", "-")


def collect_settings(recipe: Recipe) -> dict[str, Setting]:
    """Return every setting by key, in the order of the classes.

    Raises:
        InvalidConfig: an option has a type that flags do not support, or the options are not a dataclass.
    """
    settings = _collect(recipe.train, "")
    if recipe.options is not None:
        settings += _collect(recipe.options, OPTIONS)
    return {setting.key: setting for setting in settings}


def _collect(node: Any, key: str) -> list[Setting]:
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        raise InvalidConfig(
            f"The recipe's {key or 'train'} is {node!r}, not an instance of a dataclass.",
            fix="Collect the recipe's settings in a frozen dataclass with a default for each.",
        )
    settings_type = type(node)
    kinds = get_type_hints(settings_type)
    docs = {entry.arg_name: entry.description or "" for entry in parse_from_object(settings_type).params}
    title = (inspect.getdoc(settings_type) or "").partition("\n")[0]
    table = "" if title.startswith(f"{settings_type.__name__}(") else title  # the default docstring of a dataclass
    settings: list[Setting] = []
    nested_settings: list[Setting] = []
    for field in dataclasses.fields(node):
        value, name = getattr(node, field.name), f"{key}.{field.name}".lstrip(".")
        if dataclasses.is_dataclass(value):
            nested_settings += _collect(value, name)
            continue
        if not _has_flag(kinds[field.name]):
            raise InvalidConfig(
                f"The setting {name} has the type {kinds[field.name]}, which flags and TOML do not support.",
                fix="Use bool, int, float, str, Literal, None, or a tuple of these; set anything else in the recipe's "
                "assemble function.",
            )
        doc = " ".join(docs.get(field.name, "").split())
        settings.append(Setting(key=name, kind=kinds[field.name], value=value, doc=doc, table=table))
    return settings + nested_settings


def _has_flag(kind: Any) -> bool:
    if get_origin(kind) in (tuple, Union, UnionType):
        return all(_has_flag(part) for part in get_args(kind) if part is not ...)
    return kind in (bool, int, float, str, NoneType) or get_origin(kind) is Literal


def apply_overrides(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with some settings replaced.

    Args:
        recipe: the recipe, which is not modified.
        values: new values by key; they must have the types of the settings.
    """
    options = {key.removeprefix(f"{OPTIONS}."): value for key, value in values.items() if key.startswith(f"{OPTIONS}.")}
    train = {key: value for key, value in values.items() if not key.startswith(f"{OPTIONS}.")}
    return dataclasses.replace(recipe, train=_replace(recipe.train, train), options=_replace(recipe.options, options))


def _replace(node: Any, values: Mapping[str, Any]) -> Any:
    if not values:
        return node
    changes: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, _, inner_key = key.partition(".")
        if inner_key:
            nested.setdefault(name, {})[inner_key] = value
        else:
            changes[name] = value
    for name, inner_values in nested.items():
        changes[name] = _replace(getattr(node, name), inner_values)
    return dataclasses.replace(node, **changes)


def flag_parameters(settings: Mapping[str, Setting]) -> list[inspect.Parameter]:
    """Return one keyword parameter per setting, annotated for cyclopts and named after its key with ``__`` for dots."""
    groups: dict[str, Group] = {}
    parameters: list[inspect.Parameter] = []
    for setting in settings.values():
        table = setting.key.rpartition(".")[0] or "training"
        group = groups.setdefault(table, Group(table, help=setting.table, sort_key=len(groups) + 2))
        flag = Parameter(
            name=setting.flag,
            help=setting.doc,
            group=group,
            converter=_converter(setting.kind),
            negative_iterable=("empty-",) if ... in get_args(setting.kind) else (),
            show_default=format_value,
        )
        parameters.append(keyword_parameter(setting.key.replace(".", "__"), setting.kind, setting.value, flag))
    return parameters


def keyword_parameter(name: str, kind: Any, default: Any, flag: Parameter) -> inspect.Parameter:
    """Return a keyword-only parameter annotated with its flag."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, flag])


def settings_from_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `flag_parameters` by setting key."""
    return {name.replace("__", "."): value for name, value in arguments.items()}


def _converter(kind: Any) -> Callable[[Any, Sequence[Token]], Any] | None:
    """Return a converter for types for which cyclopts would round --epochs 2.7 to 3, or parse "none" as text."""
    members = set(get_args(kind) or (kind,))
    if members - {NoneType, ...} != {int} and members != {str, NoneType}:
        return None

    def convert(_kind: Any, tokens: Sequence[Token]) -> Any:
        if NoneType in members and tokens[0].value.lower() == "none":
            return None
        if str in members:
            return tokens[0].value
        numbers = tuple(read_whole_number(int, [token]) for token in tokens)
        return numbers if get_origin(kind) is tuple else numbers[0]

    return convert


def format_value(value: Any) -> str:
    """Format the value of a setting for the command line: none, 0.9 0.999, cosine."""
    if isinstance(value, tuple):
        return " ".join(map(str, cast("tuple[Any, ...]", value))) or "empty"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def format_flags(values: Mapping[str, Any], settings: Mapping[str, Setting]) -> list[str]:
    """Return the command line flags for these values, so that a run can be started again."""
    flags: list[str] = []
    for key, value in values.items():
        flag = settings[key].flag
        if isinstance(value, bool):
            flags.append(flag if value else _add_prefix(flag, "no-"))
        elif isinstance(value, tuple) and ... in get_args(settings[key].kind):
            items = cast("tuple[Any, ...]", value)
            flags += [word for item in items for word in (flag, str(item))] or [_add_prefix(flag, "empty-")]
        elif isinstance(value, tuple):
            flags += [flag, *map(str, cast("tuple[Any, ...]", value))]
        else:
            flags += [flag, format_value(value)]
    return flags


def _add_prefix(flag: str, prefix: str) -> str:
    """Add a prefix to the last part of a flag, as cyclopts does: --guard.no-locate."""
    table, dot, name = flag.removeprefix("--").rpartition(".")
    return f"--{table}{dot}{prefix}{name}"
