"""Load the overviews of all runs below a folder quickly, from a cache in ROOT/.index.sqlite.

The cache (the index) recognises a changed journal by its modification time and size. It may be deleted at any time. A
corrupt index, or one with another schema, is silently rebuilt; an index that cannot be written is not used.
"""

import gc
import os
import secrets
import sqlite3
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from trueloop.core.errors import RunFolderError
from trueloop.core.json_text import parse_json
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.queries.incremental import MIN_INCREMENTAL_BYTES, extend_record, journal_position
from trueloop.runs.queries.overview import Overview, make_overview, read_record

INDEX_NAME = ".index.sqlite"
SCHEMA = 1  # incremented whenever the result of `read_record` changes
_LOCK_TIMEOUT_S = 5.0  # wait for another process that writes the index, which takes milliseconds
_TABLE = (
    "CREATE TABLE IF NOT EXISTS runs"
    " (name BLOB PRIMARY KEY, mtime_ns INTEGER, size INTEGER, record TEXT, settings TEXT) WITHOUT ROWID"
)

Stamp = tuple[int, int]
Row = tuple[Stamp, str, str]
"""Stamp of a journal (modification time in ns, size in bytes), and record and settings of its run as JSON."""


def load_overviews(root: Path, *, with_settings: bool = False) -> list[Overview]:
    """Load the overview of every run in a folder, ordered by name.

    Args:
        root: folder of the runs: each direct subfolder with a journal is a run, except links and hidden folders.
        with_settings: True to load the settings as well.

    Raises:
        RunFolderError: the folder cannot be read.

    Cost: a stat of each journal, and reading the changed journals; 0.2 s for 10,000 unchanged runs.
    """
    with _gc_paused():
        return _load_overviews(root, _journal_stamps(root), with_settings=with_settings)


def _load_overviews(root: Path, stamps: Mapping[str, Stamp], *, with_settings: bool) -> list[Overview]:
    if not stamps:
        return []
    indexed = _load_index(root)
    unchanged = {name: row for name, row in (indexed or {}).items() if stamps.get(name) == row[0]}
    loaded = _parse_rows(unchanged, with_settings=with_settings)
    if loaded is None:  # a row is not JSON, so the index cannot be trusted
        indexed, unchanged, loaded = None, {}, {}
    changed = {
        name: _read_row(root / name, stamp, (indexed or {}).get(name))
        for name, stamp in stamps.items()
        if name not in unchanged
    }
    if changed or indexed is None or len(unchanged) < len(indexed):
        _save_index(root, changed, removed=(indexed or {}).keys() - stamps.keys(), rebuild=indexed is None)
    loaded |= _parse_rows(changed, with_settings=with_settings) or {}
    parent = "" if str(root) == "." else f"{root}/"
    return [make_overview(parent + name, *loaded[name]) for name in stamps]


@contextmanager
def _gc_paused() -> Generator[None]:
    """Pause garbage collection, which would take a quarter of the loading time to scan half a million objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_names(root: Path) -> list[str]:
    """List the names of the runs in a folder.

    Raises:
        RunFolderError: the folder cannot be read.
    """
    return list(_journal_stamps(root))


def _journal_stamps(root: Path) -> dict[str, Stamp]:
    stamps: dict[str, Stamp] = {}
    try:
        with os.scandir(root) as entries:
            folders = sorted(e.name for e in entries if e.name[0] != "." and e.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunFolderError(f"The runs in {root} cannot be listed: {error.strerror or error}.") from error
    for name in folders:
        try:
            info = os.stat(f"{root}/{name}/{JOURNAL_NAME}", follow_symlinks=False)  # noqa: PTH116 - 10,000 Paths take 0.1 s
        except (FileNotFoundError, NotADirectoryError):
            continue  # no journal: not a run
        except OSError:
            stamps[name] = (0, 0)  # not readable: `read_record` reports it
            continue
        if stat.S_ISREG(info.st_mode):
            stamps[name] = (info.st_mtime_ns, info.st_size)
    return stamps


def _read_row(run_dir: Path, stamp: Stamp, previous: Row | None) -> Row:
    """Read a journal, or only the new lines of a long journal that has grown."""
    if stamp[1] < MIN_INCREMENTAL_BYTES:
        record, settings = read_record(run_dir)
        return stamp, encode_line(record), encode_line(settings)
    try:
        extended = extend_record(run_dir, parse_json(previous[1])) if previous else None
        if previous and extended:
            return stamp, encode_line(extended), previous[2]
        position = journal_position(run_dir)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):  # `read_record` reports it
        position = None
    record, settings = read_record(run_dir)
    return stamp, encode_line({**record, "read": position} if position else record), encode_line(settings)


def _parse_rows(rows: Mapping[str, Row], *, with_settings: bool) -> dict[str, tuple[Any, Any]] | None:
    """Parse all rows together, which is three times as fast as parsing them separately; None if a row is not JSON."""
    try:
        records = parse_json(f"[{','.join(row[1] for row in rows.values())}]")
        settings = parse_json(f"[{','.join(row[2] for row in rows.values())}]") if with_settings else [{}] * len(rows)
    except (ValueError, TypeError):
        return None
    if len(records) != len(rows) or len(settings) != len(rows) or not all(type(r) is dict for r in records):
        return None
    return dict(zip(rows, zip(records, settings, strict=True), strict=True))


def _load_index(root: Path) -> dict[str, Row] | None:
    """Return the rows of the index; None if there is no usable index."""
    path = root / INDEX_NAME
    if path.is_symlink() or not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)) as index:
            if index.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
                return None
            rows = index.execute("SELECT name, mtime_ns, size, record, settings FROM runs").fetchall()
            return {os.fsdecode(name): ((mtime_ns, size), *texts) for name, mtime_ns, size, *texts in rows}
    except (sqlite3.Error, TypeError, ValueError):  # not a database, or a database with other content
        return None


def _save_index(root: Path, changed: Mapping[str, Row], *, removed: Iterable[str], rebuild: bool) -> None:
    """Write new rows to the index; errors are ignored, because results do not depend on the index."""
    path = root / INDEX_NAME
    if path.is_symlink() or not os.access(root, os.W_OK):
        return
    try:
        if rebuild:
            partial = root / f"{INDEX_NAME}.{secrets.token_hex(4)}"
            try:
                _write(partial, changed, ())
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        else:
            _write(path, changed, removed)
    except (sqlite3.Error, OSError):
        return


def _write(path: Path, changed: Mapping[str, Row], removed: Iterable[str]) -> None:
    with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)) as index:
        index.execute("PRAGMA synchronous = OFF")  # an index that a power cut corrupts is rebuilt
        index.execute("BEGIN IMMEDIATE")
        index.execute(_TABLE)
        index.execute(f"PRAGMA user_version = {SCHEMA}")
        rows = ((os.fsencode(name), *stamp, record, settings) for name, (stamp, record, settings) in changed.items())
        index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", rows)
        index.executemany("DELETE FROM runs WHERE name = ?", [(os.fsencode(name),) for name in removed])
        index.execute("COMMIT")
