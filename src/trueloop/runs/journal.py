"""Write and read the journal of a run, RUN/journal.jsonl: append-only, one JSON object per line."""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trueloop.core.errors import InvalidData, RunFolderError
from trueloop.core.json_text import parse_json
from trueloop.core.paths import is_folder
from trueloop.core.protocols import (
    CheckpointSaved,
    Evaluated,
    Notice,
    RunEnded,
    RunEvent,
    RunStarted,
    UpdateRow,
    UpdatesDone,
)
from trueloop.runs.history import History, UpdateColumns
from trueloop.runs.journal_lines import (
    READABLE_SCHEMAS,
    SCHEMA,
    UPDATE_EVENTS,
    encode_line,
    event_record,
    expand_column,
    group_rates,
    parse_event,
    update_records,
)

JOURNAL_NAME = "journal.jsonl"


class Journal:
    """A `Reporter` that appends the events of a run to its journal.

    Each `report` is one write to the operating system, so a killed process loses at most the line that it was writing.
    Opening a journal removes such a torn line. Only `close` waits for the disk.

    Args:
        path: the journal, by convention RUN/journal.jsonl; the file and its folder are created if they do not exist.
        now: function that returns the "time" of a line, in seconds since 1970.

    Raises:
        RunFolderError: the file cannot be written.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._needs_schema, self._torn = True, False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            self._size = _complete_lines_size(self.path)
            self._file.truncate(self._size)
        except OSError as error:
            raise _write_error(self.path, error) from error

    def report(self, event: RunEvent) -> None:
        """Append one event.

        Raises:
            RunFolderError: the disk is full or gone; only complete lines remain in the journal.

        Cost: about 5 µs per update; one write, which does not wait for the disk.
        """
        records = update_records(event) if isinstance(event, UpdatesDone) else [event_record(event, self._now())]
        if records and self._needs_schema:
            records[0] = {"event": records[0]["event"], "schema": SCHEMA} | records[0]
            self._needs_schema = False
        self._append("".join(map(encode_line, records)).encode())

    def close(self) -> None:
        """Flush the journal to the disk and close it; closing twice is harmless."""
        if self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _write_error(self.path, error) from error
        finally:
            self._file.close()

    def _append(self, data: bytes) -> None:
        remaining = memoryview(data)
        try:
            if self._torn:
                self._drop_torn_line()
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
        except OSError as error:
            self._torn = True
            with suppress(OSError):  # the next `_append` tries again
                self._drop_torn_line()
            raise _write_error(self.path, error) from error
        self._size += len(data)

    def _drop_torn_line(self) -> None:
        """Truncate a partial line, which would corrupt the next one."""
        self._file.truncate(self._size)
        self._torn = False


def read_journal(path: Path) -> History:
    """Read a journal; if an update ran twice, because of a kill and a resume, only its newest row is returned.

    Args:
        path: the journal or its run folder.

    Raises:
        RunFolderError: there is no journal, a newer trueloop wrote it, or no run had started.
        InvalidData: a line other than a torn last line is invalid; the message contains the line number.

    Cost: 10**6 updates take 2 s and 0.4 GB of memory.
    """
    path = path / JOURNAL_NAME if is_folder(path) else path
    builder = _HistoryBuilder(path)
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # else the process was killed while it wrote the line
                    builder.add_line(line)
    except OSError as error:
        raise RunFolderError(
            f"There is no journal to read at {path}: {error.strerror or error}.",
            why="All information about a run comes from its journal.",
            fix="Pass the run folder that was given as --run-dir.",
        ) from error
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidData(
            f"Line {builder.line_number} of {path} is not a journal line: {error!r}.",
            why="The file was changed by another program or the disk is failing, so the rest may be wrong as well.",
            fix=f"Restore the file from a copy, or delete line {builder.line_number} if you do not need it.",
        ) from error
    return builder.history()


_COLUMNS = tuple(name for name in UpdateRow._fields if name not in ("update", "rates"))


class _HistoryBuilder:
    """Builds a `History` from journal lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line_number = 0
        self.updates: list[int] = []
        self.columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.rates: dict[int, Sequence[float]] = {}
        """Update -> learning rates of all parameter groups; only for updates at which the rates differ."""
        self.memory: list[tuple[int, float]] = []
        self.started: RunStarted | None = None
        self.started_at = 0.0
        self.processes = 0
        self.evaluations: dict[tuple[int, str], Evaluated] = {}
        self.checkpoints: dict[tuple[int, str], CheckpointSaved] = {}
        self.notes: list[Notice] = []
        self.end: RunEnded | None = None

    def add_line(self, line: bytes) -> None:
        """Add one complete line."""
        self.line_number += 1
        record = parse_json(line.decode())
        if not isinstance(record, dict):
            raise TypeError("not an object")
        if record.get("schema", SCHEMA) not in READABLE_SCHEMAS:
            raise RunFolderError(
                f"{self.path} has schema {record['schema']!r}; this trueloop reads schemas up to {SCHEMA}.",
                fix="Use the trueloop that wrote the run, or a newer one.",
            )
        if record["event"] in UPDATE_EVENTS:
            self._add_updates(record)
        else:
            self._add_event(record)

    def _add_updates(self, record: dict[str, Any]) -> None:
        first, count = int(record["update"]), int(record.get("rows", 1))
        if self.updates and first <= self.updates[-1]:
            raise ValueError(f"update {first} after update {self.updates[-1]}: two processes wrote at once")
        for name, column in self.columns.items():
            column.extend(expand_column(record[name], count))
        if record.get("rates"):
            self.rates.update(zip(range(first, first + count), group_rates(record, count), strict=True))
        self.updates += range(first, first + count)
        if "memory_mib" in record:
            self.memory.append((self.updates[-1], float(record["memory_mib"])))

    def _add_event(self, record: dict[str, Any]) -> None:
        event = parse_event(record)
        match event:
            case RunStarted():
                self._add_start(event, float(record["time"]))
            case Evaluated():
                self.evaluations[event.update, event.split] = event
            case CheckpointSaved():
                self.checkpoints[event.update, event.path] = event
            case Notice():
                self.notes.append(event)
            case RunEnded():
                self.end = event

    def _add_start(self, event: RunStarted, time_s: float) -> None:
        """Add the start of a process: drop the lines after the checkpoint that it resumes, all for a fresh start."""
        start_update = event.start_update
        if start_update == 0 or self.started is None:
            self.started_at, self.processes = time_s, 0
        self.started, self.end = event, None
        self.processes += 1
        rows_to_keep = bisect_right(self.updates, start_update)
        for column in (self.updates, *self.columns.values()):
            del column[rows_to_keep:]
        self.rates = {update: rates for update, rates in self.rates.items() if update <= start_update}
        self.memory = [(update, mib) for update, mib in self.memory if update <= start_update]
        self.evaluations = {key: event for key, event in self.evaluations.items() if event.update <= start_update}
        self.checkpoints = {key: event for key, event in self.checkpoints.items() if event.update <= start_update}
        self.notes = [note for note in self.notes if note.update <= start_update]

    def history(self) -> History:
        """Return the history of the run, with the update rows as columns."""
        if self.started is None:
            raise RunFolderError(
                f"{self.path} contains no started run.", fix="Start the run again with the same command."
            )
        return History(
            started=self.started,
            started_at=self.started_at,
            processes=self.processes,
            updates=self._update_columns(),
            memory=self.memory,
            evaluations=sorted(self.evaluations.values(), key=lambda evaluation: evaluation.update),
            checkpoints=sorted(self.checkpoints.values(), key=lambda checkpoint: checkpoint.update),
            notes=self.notes,
            end=self.end,
        )

    def _update_columns(self) -> UpdateColumns:
        def numbers(name: str) -> list[float]:
            return list(map(float, self.columns[name]))  # "nan" and "inf" become floats again

        def integers(name: str) -> list[int]:
            column = list(map(int, self.columns[name]))
            if column and max(column) >= 2**63:
                raise ValueError(f"{name} is too large")
            return column

        try:
            rates = numbers("lr")
            return UpdateColumns(
                update=self.updates,
                epoch=integers("epoch"),
                loss=numbers("loss"),
                grad_norm=numbers("grad_norm"),
                lr=rates,
                rates=self._rate_columns(rates),
                examples=integers("examples"),
                wait_s=numbers("wait_s"),
                total_s=numbers("total_s"),
                skipped=list(map(bool, self.columns["skipped"])),
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidData(f"An update row of {self.path} is not made of numbers: {error}.") from error

    def _rate_columns(self, first: list[float]) -> list[list[float]]:
        """Return one column of learning rates per parameter group.

        An update without ``rates`` has the rate of the first group in all groups.
        """
        groups = max(map(len, self.rates.values()), default=1)
        other_groups = [list(first) for _ in range(1, groups)]
        for row, update in enumerate(self.updates):
            for group, rate in enumerate(self.rates.get(update, ())[1:]):
                other_groups[group][row] = float(rate)
        return [first, *other_groups]


def _complete_lines_size(path: Path) -> int:
    """Return the size of a file up to its last newline, inclusive; reads the file backwards from its end."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def _write_error(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"The journal {path} cannot be written: {error.strerror or error}.",
        why="Without a journal there is no record of the run, and it cannot be continued.",
        fix="Free space or choose another folder with --run-dir, then run the same command again.",
    )
