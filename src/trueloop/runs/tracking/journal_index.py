"""Which lines of a journal still count: a resume supersedes what was done beyond the checkpoint it starts from."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from io import FileIO
from typing import Any

from trueloop.core.errors import InvalidData, RunFolderError
from trueloop.core.json_text import parse_json
from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted
from trueloop.runs.journal_lines import READABLE, SCHEMA, UPDATES, event_of
from trueloop.runs.queries.overview import ROLLED_BACK
from trueloop.runs.tracking.journal_file import whole_lines

_ROWS = re.compile(rb'\{"event":"updates",(?:"schema":\d+,)?"update":(\d+),"rows":(\d+),')

Key = tuple[int, str]


class Survey:
    """Looks over a journal as far as it is written; in memory it keeps what is not an update row.

    Args:
        file: the journal, open for reading.
        settled_bytes: what was superseded before this place was so already when the store was written.
        taken_bytes: what lies before this place may be in the store; None = all there is.

    Cost: half a second per 10**6 updates.
    """

    def __init__(self, file: FileIO, *, settled_bytes: int = 0, taken_bytes: int | None = 0) -> None:
        self.size = 0
        """Bytes looked over, whole lines only."""
        self.newest: RunStarted | None = None
        """The start that counts."""
        self.started_s = 0.0
        """When the first process of the run began, seconds since 1970."""
        self.end = ""
        """How the newest process said the run ended; "rolled_back" where none has gone on since; "" where none said."""
        self.stale = False
        """Whether something may be in the store that counts no longer."""
        self.first_line = b""
        self._file = file
        self._settled = settled_bytes
        self._taken = math.inf if taken_bytes is None else taken_bytes
        self._taken_reach = self._reach = self._row = 0  # newest update: taken, that counts, in a row
        self._starts: list[int] = []
        self._done: list[int] = []
        self._lowest: list[int] = []
        self._places: dict[Key, int] = {}
        self._measured_ms: dict[int, int] = {}

    def extend(self, upto: int | None = None) -> None:
        """Look over what was written since.

        Args:
            upto: bytes; None = to the end.

        Raises:
            InvalidData: a whole line is not what a journal holds.
            RunFolderError: another schema of journal.
        """
        for place, line in whole_lines(self._file, self.size, upto):
            try:
                self._look(line)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise damaged(self._file.name, place, error) from error
            self.size = place + len(line)
        least = math.inf
        self._lowest = [int(least := min(least, done)) for done in reversed(self._done)][::-1]

    def settle(self) -> None:
        """Take note that the store now holds all that counts of what was looked over."""
        self._settled = self._taken = self.size
        self._taken_reach = self._reach
        self.stale = False

    def counts(self, place: int, update: int, key: Key | None = None) -> bool:
        """Say whether a line counts.

        Args:
            place: where it begins, in bytes.
            update: the one it is about.
            key: of an evaluation or a checkpoint, of which the last one with that key counts; see `key_of`.
        """
        after = bisect_right(self._starts, place)
        if after < len(self._lowest) and update > self._lowest[after]:
            return False
        return key is None or self._places.get(key) == place

    def measured_ms(self, update: int) -> int | None:
        """Say when an update was evaluated, since 1970; of several splits, the first. None where it was not."""
        return self._measured_ms.get(update)

    def _look(self, line: bytes) -> None:
        place = self.size
        self.first_line = self.first_line or line
        self.end = "" if self.end == ROLLED_BACK else self.end
        if rows := _ROWS.match(line):
            self._look_at_rows(place, int(rows[1]), int(rows[2]))
            return
        record = parsed(line, self._file.name)
        if record["event"] in UPDATES:
            self._look_at_rows(place, int(record["update"]), int(record.get("rows", 1)))
            return
        event = event_of(record)
        if isinstance(event, RunStarted):
            self._start(place, event, float(record["time"]))
            return
        if isinstance(event, RunEnded):
            self.end = event.reason
            return
        self._reached(place, event.update)
        if isinstance(event, Notice) and event.kind == ROLLED_BACK:
            self.end = ROLLED_BACK
        if isinstance(event, Evaluated | CheckpointSaved):
            key = key_of(event)
            if self._places.get(key, math.inf) < self._taken and place >= self._settled:
                self.stale = True
            self._places[key] = place
        if isinstance(event, Evaluated):
            self._measured_ms.setdefault(event.update, int(float(record["time"]) * 1000))

    def _look_at_rows(self, place: int, first: int, count: int) -> None:
        if first <= self._row or count < 1:
            raise ValueError(f"update {first} after update {self._row}: two processes wrote at once")
        self._row = first + count - 1
        self._reached(place, self._row)

    def _reached(self, place: int, update: int) -> None:
        self._reach = max(self._reach, update)
        if place < self._taken:
            self._taken_reach = max(self._taken_reach, update)

    def _start(self, place: int, event: RunStarted, at: float) -> None:
        done = event.start_update
        if done < self._taken_reach and place >= self._settled:
            self.stale = True
        if done == 0 or self.newest is None:
            self.started_s = at
        self._taken_reach = min(self._taken_reach, done)
        self._reach, self._row = min(self._reach, done), min(self._row, done)
        self._places = {key: where for key, where in self._places.items() if key[0] <= done}
        self._measured_ms = {update: ms for update, ms in self._measured_ms.items() if update <= done}
        self._starts.append(place)
        self._done.append(done)
        self.newest, self.end = event, ""


def key_of(event: Evaluated | CheckpointSaved) -> Key:
    """Return what makes an evaluation or a checkpoint the same one again."""
    return event.update, f"split {event.split}" if isinstance(event, Evaluated) else f"path {event.path}"


def parsed(line: bytes, name: object) -> dict[str, Any]:
    """Read one line as the record it holds.

    Raises:
        ValueError, TypeError: it is none.
        RunFolderError: of another schema.
    """
    record: Any = parse_json(line)
    if b"\\ud" in line:  # of names that are no UTF-8: no store takes half a pair of surrogates
        record = parse_json(json.dumps(record, ensure_ascii=False).encode(errors="replace"))
    if not isinstance(record, dict):
        raise TypeError("not an object")
    if record.get("schema", SCHEMA) not in READABLE:
        raise RunFolderError(
            f"{name} has schema {record['schema']!r}; this trueloop reads schemas up to {SCHEMA}.",
            fix="Use the trueloop that wrote the run, or a newer one.",
        )
    return record


def damaged(name: object, place: int, error: Exception) -> InvalidData:
    """Return the error that names a line which is not a journal's."""
    return InvalidData(
        f"The line at byte {place} of {name} is not a journal line: {error!r}.",
        why="The file was changed from outside or the disk is failing, so the rest cannot be trusted blindly.",
        fix="Restore the file from a copy, or delete that line if it can be spared.",
    )
