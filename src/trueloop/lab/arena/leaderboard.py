"""Store queued and judged entries in one SQLite file that several processes may use at the same time.

Every query opens its own connection; the file is in WAL mode, so readers never wait.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import sqlite3
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, cast

from trueloop.core.errors import BoardError, InvalidConfig
from trueloop.core.json_text import parse_json
from trueloop.core.paths import is_file
from trueloop.core.untrusted_input import Bounds, parse_record
from trueloop.lab.arena.entry import parse_entry
from trueloop.lab.arena.ranking import JudgedEntry
from trueloop.lab.arena.trial import MAX_SEED, End, Point, Trial, thin_points


def open_leaderboard(path: Path | None) -> Leaderboard:
    """Open the given leaderboard, or the user's default one.

    Raises:
        BoardError: the given file does not exist.
    """
    if path is not None and not is_file(path):
        raise BoardError(f"There is no leaderboard {str(path)!r}.", fix="`trueloop arena submit --board` creates one.")
    return Leaderboard(path or default_leaderboard_path())


def default_leaderboard_path(environment: Mapping[str, str] | None = None, *, platform: str = sys.platform) -> Path:
    """Return the path of the user's leaderboard, in the system's folder for application data.

    Args:
        environment: variables; None = those of the process.
        platform: a value of `sys.platform`.
    """
    variables = os.environ if environment is None else environment
    home = Path.home()
    if platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif platform == "win32":
        folder = Path(variables.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        folder = Path(variables.get("XDG_DATA_HOME") or home / ".local" / "share")
    return folder / "trueloop" / "arena.sqlite3"


MAX_WAITING: Final = 32  # largest number of entries in the queue; judging so many takes an hour
MAX_ENTRIES: Final = 5000  # largest number of entries; with their curves they take about 125 MB
MAX_ATTEMPTS: Final = 3  # number of attempts after which an entry fails, if the judge is killed in each of them
LOCK_TIMEOUT_S: Final = 15.0  # longest wait until another process has written
MAX_NAME: Final = 32  # largest number of characters of a name
MAX_FIELD: Final = 1 << 20  # largest number of characters of any other column

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    track TEXT NOT NULL, track_fingerprint TEXT NOT NULL, name TEXT NOT NULL, baseline INTEGER NOT NULL,
    config TEXT NOT NULL, seeds TEXT NOT NULL, state TEXT NOT NULL, submitted REAL NOT NULL, ended REAL,
    attempts INTEGER NOT NULL DEFAULT 0, progress TEXT NOT NULL DEFAULT '{}', trials TEXT NOT NULL DEFAULT '[]',
    versions TEXT NOT NULL DEFAULT '{}', why TEXT NOT NULL DEFAULT '', seal TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS by_track ON entries (track, track_fingerprint, state);
CREATE INDEX IF NOT EXISTS by_state ON entries (state);
CREATE TABLE IF NOT EXISTS curves (
    entry INTEGER NOT NULL REFERENCES entries (id) ON DELETE CASCADE, seed INTEGER NOT NULL, points TEXT NOT NULL,
    PRIMARY KEY (entry, seed)
) WITHOUT ROWID;
"""
_COLUMNS: Final = (
    "id, track, track_fingerprint, name, baseline, config, seeds, state, submitted, ended, progress, trials, versions, "
    "why, seal"
)
_SEALED: Final = "id, track, track_fingerprint, name, baseline, config, seeds, state, trials, versions"
KEY_BYTES: Final = 32
_SELECT: Final = f"SELECT {_COLUMNS} FROM entries"  # noqa: S608 - our own columns
_SELECT_WAITING: Final = f"{_SELECT} WHERE state IN ('queued', 'judging') ORDER BY baseline DESC, id"


class State(StrEnum):
    """State of an entry."""

    QUEUED = "queued"
    JUDGING = "judging"
    REACHED = "reached"
    """Reached the target on every seed."""
    NOT_REACHED = "not reached"
    """Missed the target on at least one seed."""
    DISQUALIFIED = "disqualified"
    FAILED = "failed"
    """The entry could not be judged; ``why`` is the reason."""


OPEN_STATES: Final = frozenset({State.QUEUED, State.JUDGING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stored entry."""

    id: int
    track: str
    track_fingerprint: str
    """Fingerprint of the track at submission."""
    name: str
    baseline: bool
    config: str
    """Canonical JSON: equal texts are equal entries."""
    seeds: tuple[int, ...]
    state: State
    submitted: float
    """Seconds since 1970."""
    ended: float | None
    progress: Mapping[str, Any]
    trials: tuple[Trial, ...]
    versions: Mapping[str, str]
    why: str
    seal: str
    """Authentication code of the result; "" if it was not judged, or if a replay had another result."""

    @property
    def is_open(self) -> bool:
        """True until the entry is judged."""
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submitted entry with its seeds."""

    track: str
    track_fingerprint: str
    name: str
    config: str
    seeds: tuple[int, ...]
    baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRow:
    """A damaged row, which is ignored."""

    id: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredRow:
    """Validated columns of a row; the file is untrusted."""

    id: Annotated[int, Bounds(0, 2**63)]
    track: Annotated[str, Bounds(1, MAX_NAME)]
    track_fingerprint: Annotated[str, Bounds(1, 64)]
    name: Annotated[str, Bounds(1, MAX_NAME)]
    baseline: bool
    config: Annotated[str, Bounds(2, 10_000)]
    seeds: Annotated[tuple[Annotated[int, Bounds(0, MAX_SEED)], ...], Bounds(1, 64)]
    submitted: Annotated[float, Bounds(0, 1e11)]
    ended: Annotated[float, Bounds(0, 1e11)] | None
    why: Annotated[str, Bounds(0, MAX_FIELD)]
    seal: Annotated[str, Bounds(0, 64)]


class Leaderboard:
    """A leaderboard in a file, which is created if it does not exist.

    Args:
        path: the SQLite file.

    Raises:
        BoardError: the file cannot be used; every method may raise this.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BoardError(
                f"The leaderboard's folder {str(path.parent)!r} cannot be created: {error.strerror}.",
                fix="Give --board.",
            ) from error
        with self._connect() as connection:
            connection.executescript(_SCHEMA)
            if "seal" not in [column[1] for column in connection.execute("PRAGMA table_info(entries)")]:
                connection.execute("ALTER TABLE entries ADD COLUMN seal TEXT NOT NULL DEFAULT ''")
        self._key = self._read_key()

    def submit(self, entry: Submission, now: float) -> int:
        """Queue an entry and return its number.

        Raises:
            BoardError: the queue or the leaderboard is full.
        """
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            waiting, stored = connection.execute(
                "SELECT SUM(state IN ('queued', 'judging')), COUNT(*) FROM entries"
            ).fetchone()
            if (waiting or 0) >= MAX_WAITING and not entry.baseline:
                raise BoardError(f"{waiting} entries are waiting already.", fix="Submit yours when some are judged.")
            if stored >= MAX_ENTRIES:
                raise BoardError(f"The leaderboard is full: {stored} entries.", fix="Create another one with --board.")
            cursor = connection.execute(
                "INSERT INTO entries (track, track_fingerprint, name, baseline, config, seeds, state, submitted)"
                " VALUES (?, ?, ?, ?, ?, ?, 'queued', ?)",
                (
                    entry.track, entry.track_fingerprint, entry.name, int(entry.baseline), entry.config,
                    json.dumps(entry.seeds), now,
                ),
            )  # fmt: skip
            return cast("int", cursor.lastrowid)

    def count_ahead(self, entry: int) -> int:
        """Return the number of entries ahead of an entry, including the one being judged."""
        waiting = [row.id for row in self.open_entries()]
        return waiting.index(entry) if entry in waiting else 0

    def count_waiting(self) -> int:
        """Return the number of entries not judged yet."""
        with self._connect() as connection:
            return connection.execute("SELECT COUNT(*) FROM entries WHERE state IN ('queued', 'judging')").fetchone()[0]

    def open_entries(self) -> list[Row]:
        """Return the valid entries that are not judged yet, the next one first."""
        with self._connect() as connection:
            records = connection.execute(_SELECT_WAITING).fetchall()
        return sorted(_valid_rows(records), key=lambda row: row.state != State.JUDGING)

    def claim_next(self) -> Row | None:
        """Claim the oldest entry of the queue for judging; None if there is none.

        The caller must hold the judging lock: entries that a killed judge had claimed are claimed again.
        """
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "UPDATE entries SET state = 'failed', why = ? WHERE state = 'judging' AND attempts >= ?",
                (f"The judging was ended {MAX_ATTEMPTS} times before it was complete.", MAX_ATTEMPTS),
            )
            parsed = [(each[0], _parse_row_or_error(each)) for each in connection.execute(_SELECT_WAITING)]
            damaged = [(number,) for number, row in parsed if isinstance(row, BoardError)]
            connection.executemany("UPDATE entries SET state = 'failed' WHERE id = ?", damaged)
            row = next((row for _, row in parsed if isinstance(row, Row)), None)
            if row is not None:
                connection.execute(
                    "UPDATE entries SET state = 'judging', attempts = attempts + 1, progress = '{}' WHERE id = ?",
                    (row.id,),
                )
        return row

    def uncount_attempt(self, entry: int) -> None:
        """Do not count an attempt that was ended on purpose; the entry keeps its position and seeds."""
        with self._connect() as connection:
            update = "UPDATE entries SET attempts = attempts - 1 WHERE id = ? AND state = 'judging'"
            connection.execute(update, (entry,))

    def set_progress(self, entry: int, progress: Mapping[str, Any]) -> None:
        """Store the progress of judging an entry."""
        with self._connect() as connection:
            connection.execute(
                "UPDATE entries SET progress = ? WHERE id = ? AND state = 'judging'", (_to_json(progress), entry)
            )

    def record_result(
        self,
        entry: int,
        trials: Sequence[Trial],
        curves: Mapping[int, list[Point]],
        *,
        versions: Mapping[str, str],
        now: float,
    ) -> State:
        """Store the result of an entry and return its state."""
        state, why = verdict(trials)
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            updated = connection.execute(
                "UPDATE entries SET state = ?, trials = ?, versions = ?, ended = ?, why = ?, progress = '{}'"
                " WHERE id = ?",
                (state, _to_json([asdict(trial) for trial in trials]), _to_json(versions), now, why, entry),
            ).rowcount
            if not updated:  # the entry was withdrawn while it was judged
                return state
            connection.executemany(
                "INSERT OR REPLACE INTO curves VALUES (?, ?, ?)",
                [(entry, seed, _to_json(thin_points(points))) for seed, points in curves.items()],
            )
            self._write_seal(connection, entry)
        return state

    def record_replay(self, entry: int, *, confirmed: bool) -> None:
        """Rank an entry whose replay had the same result; no longer rank one whose replay had another result."""
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE entries SET seal = '' WHERE id = ?", (entry,))
            if confirmed:
                self._write_seal(connection, entry)

    def withdraw(self, entry: int) -> bool:
        """Withdraw a queued entry; return False if judging has started, as its progress may have been seen."""
        with self._connect() as connection:
            return connection.execute("DELETE FROM entries WHERE id = ? AND state = 'queued'", (entry,)).rowcount > 0

    def entry(self, entry: int) -> Row:
        """Return one entry.

        Raises:
            BoardError: there is no entry with this number.
        """
        with self._connect() as connection:
            record = connection.execute(f"{_SELECT} WHERE id = ?", (entry,)).fetchone() if abs(entry) < 2**63 else None
        if record is None:
            raise BoardError(
                f"There is no entry {entry} on the leaderboard.", fix="`trueloop arena board` lists all entries."
            )
        return _parse_row(record)

    def curves(self, entry: int) -> dict[int, list[Point]]:
        """Return the curves of an entry, by seed."""
        with self._connect() as connection:
            rows = connection.execute("SELECT seed, points FROM curves WHERE entry = ?", (entry,)).fetchall()
        try:
            return {int(seed): [(int(u), int(e), float(a)) for u, e, a in _load_json(points)] for seed, points in rows}
        except (ValueError, TypeError, OverflowError) as error:
            raise BoardError(f"A curve of entry {entry} is damaged: {error}.") from error

    def judged_entries(self, track: str, track_fingerprint: str) -> list[JudgedEntry]:
        """Return the valid judged entries of the current version of a track, including failed ones."""
        with self._connect() as connection:
            records = connection.execute(
                f"{_SELECT} WHERE track = ? AND track_fingerprint = ? AND state NOT IN ('queued', 'judging')"
                " AND NOT (baseline AND state = 'failed') ORDER BY id",
                (track, track_fingerprint),
            ).fetchall()
            sealed = {record[0] for record in records if self._has_seal(connection, record[0])}
        return [
            JudgedEntry(
                id=row.id,
                name=row.name,
                config=row.config,
                baseline=row.baseline,
                trials=trials,
                confirmed=row.id in sealed or all(trial.end != End.REACHED for trial in trials),
            )
            for row in _valid_rows(records)
            if (trials := _counted_trials(row))
        ]

    def _read_key(self) -> bytes:
        """Return the key of the seals, which is in a private file next to the leaderboard and created if necessary."""
        path = self.path.with_name(self.path.name + ".key")
        try:
            if not is_file(path):
                with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name) as file:  # others cannot read it
                    file.write(secrets.token_bytes(KEY_BYTES))
                    file.flush()
                    with suppress(FileExistsError):  # another process was faster
                        os.link(file.name, path)
            return path.read_bytes()
        except OSError as error:
            raise BoardError(f"{str(path)!r} cannot be used: {error.strerror}.", fix="Give another --board.") from error

    def _seal(self, connection: sqlite3.Connection, entry: int) -> str:
        record = connection.execute(f"SELECT {_SEALED} FROM entries WHERE id = ?", (entry,)).fetchone()  # noqa: S608
        return hmac.digest(self._key, repr(record).encode(), "sha256").hex()

    def _write_seal(self, connection: sqlite3.Connection, entry: int) -> None:
        connection.execute("UPDATE entries SET seal = ? WHERE id = ?", (self._seal(connection, entry), entry))

    def _has_seal(self, connection: sqlite3.Connection, entry: int) -> bool:
        seal = connection.execute("SELECT seal FROM entries WHERE id = ?", (entry,)).fetchone()[0]
        return hmac.compare_digest(str(seal).encode(), self._seal(connection, entry).encode())

    def damaged_rows(self, track: str) -> list[DamagedRow]:
        """Return the damaged rows of a track, the oldest first."""
        with self._connect() as connection:
            records = connection.execute(f"{_SELECT} WHERE track = ? ORDER BY id", (track,)).fetchall()
        parsed = ((each[0], _parse_row_or_error(each)) for each in records)
        return [DamagedRow(id=number, why=error.what) for number, error in parsed if isinstance(error, BoardError)]

    def has_baseline(self, track: str, track_fingerprint: str) -> bool:
        """True if the baseline of the current version of a track was submitted and did not fail."""
        with self._connect() as connection:
            record = connection.execute(
                "SELECT 1 FROM entries WHERE baseline AND track = ? AND track_fingerprint = ?"
                " AND state != 'failed' LIMIT 1",
                (track, track_fingerprint),
            ).fetchone()
        return record is not None

    @contextmanager
    def _connect(self) -> Generator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S)) as connection, connection:
                connection.execute("PRAGMA trusted_schema = OFF")  # the file is untrusted
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA foreign_keys = ON")
                yield connection
        except sqlite3.Error as error:
            raise BoardError(
                f"The leaderboard {str(self.path)!r} cannot be used: {error}.", fix="Give another file with --board."
            ) from error


def verdict(trials: Sequence[Trial]) -> tuple[State, str]:
    """Return the state that follows from the runs on all seeds, and the reason."""
    by_end = {trial.end: trial for trial in reversed(trials)}
    if trial := by_end.get(End.FOUND):
        assert trial.found
        return State.DISQUALIFIED, f"{trial.found.code}: {trial.found.message}"
    if trial := by_end.get(End.FAILED):
        return State.FAILED, trial.why
    if not trials:
        return State.FAILED, "The entry was not run."
    missed = [trial for trial in trials if trial.end != End.REACHED]
    if not missed:
        return State.REACHED, ""
    stopped = by_end.get(End.STOPPED)
    reason = f"The entry did not reach the target on {len(missed)} of {len(trials)} seeds."
    return State.NOT_REACHED, f"{reason} {stopped.why}" if stopped else reason


def _counted_trials(row: Row) -> tuple[Trial, ...]:
    """Return the runs that count; if the judge was killed during runs too often, every seed counts as failed."""
    if row.trials or not (row.progress.get("update") or row.progress.get("done")):
        return row.trials
    return tuple(Trial(seed=seed, end=End.FAILED.value, why=row.why) for seed in row.seeds)


def _valid_rows(records: Iterable[Sequence[Any]]) -> Iterator[Row]:
    """Return the valid rows, and skip the damaged ones."""
    return (row for row in map(_parse_row_or_error, records) if isinstance(row, Row))


def _parse_row_or_error(record: Sequence[Any]) -> Row | BoardError:
    try:
        return _parse_row(record)
    except BoardError as error:
        return error


def _parse_row(record: Sequence[Any]) -> Row:
    columns = dict(zip(_COLUMNS.split(", "), record, strict=True))
    try:
        for name in ("seeds", "progress", "versions"):
            columns[name] = _load_json(columns[name])
        trials, state = columns.pop("trials"), State(columns.pop("state"))
        progress, versions = _check_mapping(columns.pop("progress")), _check_mapping(columns.pop("versions"))
        stored = parse_record(_StoredRow, {**columns, "baseline": bool(columns["baseline"])})
        columns["config"] = parse_entry(_check_mapping(_load_json(stored.config))).as_json()
        return Row(
            **{name: getattr(stored, name) for name in columns if name != "config"},
            config=columns["config"],
            state=state,
            progress=progress,
            versions={name: str(version) for name, version in versions.items()},
            trials=_parse_trials(trials),
        )
    except (ValueError, TypeError, InvalidConfig) as error:
        reason = str(error).rstrip(".")
        raise BoardError(f"Entry {str(record[0])[:40]} of the leaderboard is damaged: {reason}.") from error


def _load_json(text: Any) -> Any:
    if not isinstance(text, str) or len(text) > MAX_FIELD:
        raise TypeError("it is not a text, or is too long")
    return parse_json(text)


def _check_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:60]!r} is not a mapping")
    return cast("dict[str, Any]", value)


@lru_cache(maxsize=MAX_ENTRIES)  # judged rows never change
def _parse_trials(text: str) -> tuple[Trial, ...]:
    return tuple(parse_record(Trial, each) for each in _load_json(text))


def _to_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
