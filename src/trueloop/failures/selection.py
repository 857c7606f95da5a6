"""Which failures to watch for, and which ones not to hear of: the words of the user, `pyproject.toml`, comments."""

from __future__ import annotations

import difflib
import linecache
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import SourceLocation
from trueloop.core.suppression import named, pragmas
from trueloop.failures.load import FAMILIES, Entry, catalogue, find_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSelection:
    """What was chosen."""

    select: frozenset[str] = frozenset()
    """Codes and families; empty = all there are."""
    ignore: frozenset[str] = frozenset()
    _pragmas: dict[str, Mapping[int, frozenset[str]]] = field(default_factory=dict[str, Mapping[int, frozenset[str]]])

    def entries(self) -> list[Entry]:
        """Return what to watch for. What is ignored is among it: its findings are counted, and not shown."""
        return [entry for entry in catalogue().values() if not self.select or named(entry.code, self.select)]

    def is_suppressed(self, code: str, location: SourceLocation | None) -> bool:
        """True where the user asked not to hear of a code at all, or at this line."""
        if named(code, self.ignore):
            return True
        if location is None:
            return False
        if location.path not in self._pragmas:
            self._pragmas[location.path] = pragmas("".join(linecache.getlines(location.path)))
        return named(code, self._pragmas[location.path].get(location.line, frozenset()))


def select_failures(select: Iterable[str], ignore: Iterable[str], *, folder: Path) -> FailureSelection:
    """Put together what was said on the spot and what the project says in ``[tool.trueloop]``.

    Args:
        select: codes, families or slugs, also several in a word with commas; where there are any, those of the
            project do not count.
        ignore: as above; those of the project count as well.
        folder: the project's `pyproject.toml` is looked for here and above.

    Raises:
        InvalidConfig: a word that names nothing in the catalogue.
    """
    table, path = _read_config(folder)
    chosen = list(_resolve_codes(select, "select")) or list(
        _resolve_codes(_config_list(table, "select", path), f"select in {path}")
    )
    ignored = [
        *_resolve_codes(ignore, "ignore"),
        *_resolve_codes(_config_list(table, "ignore", path), f"ignore in {path}"),
    ]
    return FailureSelection(select=frozenset(chosen), ignore=frozenset(ignored))


def get_failure(code_or_slug: str) -> Entry:
    """Return the failure with this code or slug.

    Raises:
        InvalidConfig: there is none.
    """
    entry = find_failure(code_or_slug.replace("_", "-"))
    if entry is None:
        raise _unknown_failure_error(code_or_slug, "is not a failure of the catalogue")
    return entry


def read_config_list(folder: Path, key: str) -> list[str]:
    """Return a list of words of the project's ``[tool.trueloop]``.

    Args:
        folder: the project's `pyproject.toml` is looked for here and above.
        key: of the setting: "exclude".

    Raises:
        InvalidConfig: it is no list of words.
    """
    table, path = _read_config(folder)
    return _config_list(table, key, path)


def _resolve_codes(words: Iterable[str], where: str) -> Iterable[str]:
    for word in (part.strip() for some in words for part in some.split(",")):
        if word.upper() in FAMILIES.values():
            yield word.upper()
        elif word.lower() in FAMILIES:
            yield FAMILIES[word.lower()]
        elif entry := find_failure(word.replace("_", "-")):
            yield entry.code
        elif word:
            raise _unknown_failure_error(word, f"({where}) is neither a failure nor a family")


def _unknown_failure_error(word: str, what: str) -> InvalidConfig:
    words = [name for entry in catalogue().values() for name in (entry.code, entry.slug)]
    close = difflib.get_close_matches(word.upper(), words, n=1) or difflib.get_close_matches(word.lower(), words, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return InvalidConfig(f"{word!r} {what}.", fix=f"{hint}`trueloop failures` lists them all.")


def _read_config(folder: Path) -> tuple[Mapping[str, Any], Path]:
    """Return the nearest ``[tool.trueloop]`` and the file it is in."""
    for above in (folder, *folder.parents):
        path = above / "pyproject.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "trueloop" not in text:  # a file that is none of our business may be broken
            continue
        try:
            table = tomllib.loads(text).get("tool", {}).get("trueloop")
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfig(f"{path} is not TOML: {error}.", fix="Mend it, or run elsewhere.") from error
        if isinstance(table, dict):
            return cast("Mapping[str, Any]", table), path
    return {}, folder


def _config_list(table: Mapping[str, Any], key: str, path: Path) -> list[str]:
    words = table.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in cast("list[Any]", words)):
        raise InvalidConfig(f"{path} sets {key} = {words!r}.", fix=f'Write a list of codes: {key} = ["GRD001", "MEM"].')
    return cast("list[str]", words)
