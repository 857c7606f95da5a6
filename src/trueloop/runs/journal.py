"""The journal of a run, RUN/journal.jsonl: append-only, one JSON object per line, the truth about what happened."""

from __future__ import annotations

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
from trueloop.runs.history import History, Updates
from trueloop.runs.journal_lines import (
    READABLE,
    SCHEMA,
    UPDATES,
    encode,
    event_of,
    event_record,
    rates_of,
    spread,
    update_records,
)

FILE_NAME = "journal.jsonl"


class Journal:
    """Writes a run's events down; a `Reporter`.

    Each `report` is one write to the operating system, so a killed process loses at most the line it was writing;
    such a torn line is cut off here before anything is appended. Only `close` waits for the disk.

    Args:
        path: the file, by custom RUN/journal.jsonl; it and its folder are made if absent.
        now: the clock behind the "time" of a line, seconds since 1970.

    Raises:
        RunFolderError: it cannot be written.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._first, self._torn = True, False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            self._size = _whole_lines_bytes(self.path)
            self._file.truncate(self._size)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def report(self, event: RunEvent) -> None:
        """Append one event.

        Raises:
            RunFolderError: the disk is full or gone; the journal is left with whole lines only.

        Cost: about 5 µs per update; one write, without waiting for the disk.
        """
        records = update_records(event) if isinstance(event, UpdatesDone) else [event_record(event, self._now())]
        if records and self._first:
            records[0] = {"event": records[0]["event"], "schema": SCHEMA} | records[0]
            self._first = False
        self._append("".join(map(encode, records)).encode())

    def close(self) -> None:
        """Wait until the journal is on the disk, then let go; closing twice is harmless."""
        if self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            self._file.close()

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            if self._torn:
                self._cut()
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._torn = True
            with suppress(OSError):  # a disk that takes nothing at all; tried again before the next line
                self._cut()
            raise _unwritable(self.path, error) from error
        self._size += len(data)

    def _cut(self) -> None:
        """Take half a line away: it would corrupt the one that follows it."""
        self._file.truncate(self._size)
        self._torn = False


def read(path: Path) -> History:
    """Read a journal back; of an update that was run twice, after a kill and a resume, the newest row counts.

    Args:
        path: the journal, or the run folder it lies in.

    Raises:
        RunFolderError: there is no journal, or a newer trueloop wrote it, or no run had started.
        InvalidData: a line other than a torn last one is not what a journal holds; names it.

    Cost: 10**6 updates take 2 s and 0.4 GB.
    """
    path = path / FILE_NAME if is_folder(path) else path
    reading = _Reading(path)
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # else the process was killed while writing it
                    reading.take(line)
    except OSError as error:
        raise RunFolderError(
            f"There is no journal to read at {path}: {error.strerror or error}.",
            why="A run is told from its journal; without one there is nothing to show.",
            fix="Name the folder a run was written to, as --run-dir had it.",
        ) from error
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidData(
            f"Line {reading.line} of {path} is not a journal line: {error!r}.",
            why="The file was changed from outside or the disk is failing, so the rest cannot be trusted blindly.",
            fix=f"Restore the file from a copy, or delete line {reading.line} if it can be spared.",
        ) from error
    return reading.history()


_COLUMNS = tuple(name for name in UpdateRow._fields if name not in ("update", "rates"))


class _Reading:
    """What has been read so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        self.updates: list[int] = []
        self.columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.rates: dict[int, Sequence[float]] = {}
        """Update -> those of all groups, where they are not all alike."""
        self.memory: list[tuple[int, float]] = []
        self.started: RunStarted | None = None
        self.started_at = 0.0
        self.processes = 0
        self.evaluations: dict[tuple[int, str], Evaluated] = {}
        self.checkpoints: dict[tuple[int, str], CheckpointSaved] = {}
        self.notes: list[Notice] = []
        self.end: RunEnded | None = None

    def take(self, line: bytes) -> None:
        """Add one whole line."""
        self.line += 1
        record = parse_json(line.decode())
        if not isinstance(record, dict):
            raise TypeError("not an object")
        if record.get("schema", SCHEMA) not in READABLE:
            raise RunFolderError(
                f"{self.path} has schema {record['schema']!r}; this trueloop reads schemas up to {SCHEMA}.",
                fix="Use the trueloop that wrote the run, or a newer one.",
            )
        if record["event"] in UPDATES:
            self._take_updates(record)
        else:
            self._take_event(record)

    def _take_updates(self, record: dict[str, Any]) -> None:
        first, count = int(record["update"]), int(record.get("rows", 1))
        if self.updates and first <= self.updates[-1]:
            raise ValueError(f"update {first} after update {self.updates[-1]}: two processes wrote at once")
        for name, column in self.columns.items():
            column.extend(spread(record[name], count))
        if record.get("rates"):
            self.rates.update(zip(range(first, first + count), rates_of(record, count), strict=True))
        self.updates += range(first, first + count)
        if "memory_mib" in record:
            self.memory.append((self.updates[-1], float(record["memory_mib"])))

    def _take_event(self, record: dict[str, Any]) -> None:
        event = event_of(record)
        match event:
            case RunStarted():
                self._start(event, float(record["time"]))
            case Evaluated():
                self.evaluations[event.update, event.split] = event
            case CheckpointSaved():
                self.checkpoints[event.update, event.path] = event
            case Notice():
                self.notes.append(event)
            case RunEnded():
                self.end = event

    def _start(self, event: RunStarted, at: float) -> None:
        """A resume supersedes what a killed process did beyond the checkpoint it starts from; a fresh start, all."""
        done = event.start_update
        if done == 0 or self.started is None:
            self.started_at, self.processes = at, 0
        self.started, self.end = event, None
        self.processes += 1
        kept = bisect_right(self.updates, done)
        for column in (self.updates, *self.columns.values()):
            del column[kept:]
        self.rates = {update: rates for update, rates in self.rates.items() if update <= done}
        self.memory = [(update, mib) for update, mib in self.memory if update <= done]
        self.evaluations = {key: each for key, each in self.evaluations.items() if each.update <= done}
        self.checkpoints = {key: each for key, each in self.checkpoints.items() if each.update <= done}
        self.notes = [each for each in self.notes if each.update <= done]

    def history(self) -> History:
        """Turn rows into columns."""
        if self.started is None:
            raise RunFolderError(
                f"{self.path} holds no run: none had started when it was last written.",
                fix="Start the run again with the same command.",
            )
        return History(
            started=self.started,
            started_at=self.started_at,
            processes=self.processes,
            updates=self._updates(),
            memory=self.memory,
            evaluations=sorted(self.evaluations.values(), key=lambda each: each.update),
            checkpoints=sorted(self.checkpoints.values(), key=lambda each: each.update),
            notes=self.notes,
            end=self.end,
        )

    def _updates(self) -> Updates:
        def numbers(name: str) -> list[float]:
            return list(map(float, self.columns[name]))  # "nan" and "inf" become floats again

        def whole(name: str) -> list[int]:
            column = list(map(int, self.columns[name]))
            if column and max(column) >= 2**63:
                raise ValueError(f"{name} is beyond what can be counted")
            return column

        try:
            rates = numbers("lr")
            return Updates(
                update=self.updates,
                epoch=whole("epoch"),
                loss=numbers("loss"),
                grad_norm=numbers("grad_norm"),
                lr=rates,
                rates=self._rates(rates),
                examples=whole("examples"),
                wait_s=numbers("wait_s"),
                total_s=numbers("total_s"),
                skipped=list(map(bool, self.columns["skipped"])),
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidData(f"An update row of {self.path} is not made of numbers: {error}.") from error

    def _rates(self, first: list[float]) -> list[list[float]]:
        """Return a column for each group; where nothing else was written, all have the rate of the first."""
        groups = max(map(len, self.rates.values()), default=1)
        others = [list(first) for _ in range(1, groups)]
        for place, update in enumerate(self.updates):
            for group, rate in enumerate(self.rates.get(update, ())[1:]):
                others[group][place] = float(rate)
        return [first, *others]


def _whole_lines_bytes(path: Path) -> int:
    """Bytes up to and with the last newline; reads backwards, so it costs the torn line only."""
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


def _unwritable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"The journal {path} cannot be written: {error.strerror or error}.",
        why="Without it nothing could be said afterwards about what this run did.",
        fix="Free space or choose another folder with --run-dir, then start the same command again.",
    )
