"""Selects the failures to detect and to report, from arguments, `pyproject.toml` and comments."""

import difflib
import linecache
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import SourceLocation
from trueloop.core.suppression import ignored_codes, matches_code
from trueloop.failures.load import FAMILIES, Entry, catalogue, find_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSelection:
    """The failures that are selected and ignored."""

    select: frozenset[str] = frozenset()
    """Codes and families; empty = all failures."""
    ignore: frozenset[str] = frozenset()
    """Codes and families whose findings are counted but not shown."""
    _pragmas: dict[str, Mapping[int, frozenset[str]]] = field(default_factory=dict[str, Mapping[int, frozenset[str]]])
    """Path of a file -> line -> codes that a comment in this line ignores; filled on demand."""

    def entries(self) -> list[Entry]:
        """Return the selected failures, including ignored ones: their findings are counted but not shown."""
        return [entry for entry in catalogue().values() if not self.select or matches_code(entry.code, self.select)]

    def is_suppressed(self, code: str, location: SourceLocation | None) -> bool:
        """Return True if the user suppresses a code everywhere or in this line."""
        if matches_code(code, self.ignore):
            return True
        if location is None:
            return False
        if location.path not in self._pragmas:
            self._pragmas[location.path] = ignored_codes("".join(linecache.getlines(location.path)))
        return matches_code(code, self._pragmas[location.path].get(location.line, frozenset()))


def select_failures(select: Iterable[str], ignore: Iterable[str], *, folder: Path) -> FailureSelection:
    """Combine command-line values with those of the project in ``[tool.trueloop]``.

    Args:
        select: codes, families or slugs, also comma-separated; if there are any, those of the project are not
            used.
        ignore: codes, families or slugs, in addition to those of the project.
        folder: folder in which the search for `pyproject.toml` starts; it continues in the parent folders.

    Raises:
        InvalidConfig: a value is neither a failure nor a family.
    """
    table, path = _read_config(folder)
    selected = list(_resolve_codes(select, "select")) or list(
        _resolve_codes(_config_list(table, "select", path), f"select in {path}")
    )
    ignored = [
        *_resolve_codes(ignore, "ignore"),
        *_resolve_codes(_config_list(table, "ignore", path), f"ignore in {path}"),
    ]
    return FailureSelection(select=frozenset(selected), ignore=frozenset(ignored))


def get_failure(code_or_slug: str) -> Entry:
    """Return the failure with this code or slug.

    Raises:
        InvalidConfig: no failure has this code or slug.
    """
    entry = find_failure(code_or_slug.replace("_", "-"))
    if entry is None:
        raise _unknown_failure_error(code_or_slug, "is not a failure of the catalogue")
    return entry


def read_config_list(folder: Path, key: str) -> list[str]:
    """Return a list of strings from ``[tool.trueloop]`` of the project.

    Args:
        folder: where the search for `pyproject.toml` starts; it continues in the parent folders.
        key: name of the setting: "exclude".

    Raises:
        InvalidConfig: the value is not a list of strings.
    """
    table, path = _read_config(folder)
    return _config_list(table, key, path)


def _resolve_codes(names: Iterable[str], origin: str) -> Iterable[str]:
    for name in (part.strip() for each in names for part in each.split(",")):
        if name.upper() in FAMILIES.values():
            yield name.upper()
        elif name.lower() in FAMILIES:
            yield FAMILIES[name.lower()]
        elif entry := find_failure(name.replace("_", "-")):
            yield entry.code
        elif name:
            raise _unknown_failure_error(name, f"({origin}) is neither a failure nor a family")


def _unknown_failure_error(name: str, problem: str) -> InvalidConfig:
    names = [each for entry in catalogue().values() for each in (entry.code, entry.slug)]
    close = difflib.get_close_matches(name.upper(), names, n=1) or difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return InvalidConfig(f"{name!r} {problem}.", fix=f"{hint}`trueloop failures` lists them all.")


def _read_config(folder: Path) -> tuple[Mapping[str, Any], Path]:
    """Return the nearest ``[tool.trueloop]`` and its file; an empty table and the folder if there is none."""
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "trueloop" not in text:  # a file without this table may be invalid TOML
            continue
        try:
            table = tomllib.loads(text).get("tool", {}).get("trueloop")
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfig(
                f"{path} is not TOML: {error}.", fix="Fix the file, or run trueloop in another folder."
            ) from error
        if isinstance(table, dict):
            return cast("Mapping[str, Any]", table), path
    return {}, folder


def _config_list(table: Mapping[str, Any], key: str, path: Path) -> list[str]:
    values = table.get(key, [])
    if not isinstance(values, list) or not all(isinstance(each, str) for each in cast("list[Any]", values)):
        raise InvalidConfig(
            f"{path} sets {key} = {values!r}.", fix=f'Write a list of codes: {key} = ["GRD001", "MEM"].'
        )
    return cast("list[str]", values)
