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
from trueloop.runs.journal_lines import READABLE_SCHEMAS, SCHEMA, UPDATE_EVENTS, parse_event
from trueloop.runs.queries.overview import ROLLED_BACK
from trueloop.runs.tracking.journal_file import complete_lines

_ROWS = re.compile(rb'\{"event":"updates",(?:"schema":\d+,)?"update":(\d+),"rows":(\d+),')

Key = tuple[int, str]


class JournalIndex:
    """Looks over a journal as far as it is written; in memory it keeps what is not an update row.

    Args:
        file: the journal, open for reading.
        synced_bytes: what was superseded before this place was so already when the store was written.
        stored_bytes: what lies before this place may be in the store; None = all there is.

    Cost: half a second per 10**6 updates.
    """

    def __init__(self, file: FileIO, *, synced_bytes: int = 0, stored_bytes: int | None = 0) -> None:
        self.size = 0
        """Bytes looked over, whole lines only."""
        self.newest_start: RunStarted | None = None
        """The start that counts."""
        self.started_s = 0.0
        """When the first process of the run began, seconds since 1970."""
        self.end = ""
        """How the newest process said the run ended; "rolled_back" where none has gone on since; "" where none said."""
        self.stale = False
        """Whether something may be in the store that counts no longer."""
        self.first_line = b""
        self._file = file
        self._synced_bytes = synced_bytes
        self._stored_bytes = math.inf if stored_bytes is None else stored_bytes
        self._stored_update = self._newest_update = self._last_row = 0  # newest update: taken, that counts, in a row
        self._starts: list[int] = []
        self._start_updates: list[int] = []
        self._min_later_start: list[int] = []
        self._offsets: dict[Key, int] = {}
        self._evaluated_ms: dict[int, int] = {}

    def extend(self, upto: int | None = None) -> None:
        """Look over what was written since.

        Args:
            upto: bytes; None = to the end.

        Raises:
            InvalidData: a whole line is not what a journal holds.
            RunFolderError: another schema of journal.
        """
        for place, line in complete_lines(self._file, self.size, upto):
            try:
                self._index_line(line)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise damaged_line_error(self._file.name, place, error) from error
            self.size = place + len(line)
        least = math.inf
        self._min_later_start = [int(least := min(least, done)) for done in reversed(self._start_updates)][::-1]

    def mark_synced(self) -> None:
        """Take note that the store now holds all that counts of what was looked over."""
        self._synced_bytes = self._stored_bytes = self.size
        self._stored_update = self._newest_update
        self.stale = False

    def is_current(self, offset: int, update: int, key: Key | None = None) -> bool:
        """Say whether a line counts.

        Args:
            offset: where it begins, in bytes.
            update: the one it is about.
            key: of an evaluation or a checkpoint, of which the last one with that key counts; see `event_key`.
        """
        after = bisect_right(self._starts, offset)
        if after < len(self._min_later_start) and update > self._min_later_start[after]:
            return False
        return key is None or self._offsets.get(key) == offset

    def evaluated_ms(self, update: int) -> int | None:
        """Say when an update was evaluated, since 1970; of several splits, the first. None where it was not."""
        return self._evaluated_ms.get(update)

    def _index_line(self, line: bytes) -> None:
        place = self.size
        self.first_line = self.first_line or line
        self.end = "" if self.end == ROLLED_BACK else self.end
        if rows := _ROWS.match(line):
            self._index_rows(place, int(rows[1]), int(rows[2]))
            return
        record = parse_line(line, self._file.name)
        if record["event"] in UPDATE_EVENTS:
            self._index_rows(place, int(record["update"]), int(record.get("rows", 1)))
            return
        event = parse_event(record)
        if isinstance(event, RunStarted):
            self._index_start(place, event, float(record["time"]))
            return
        if isinstance(event, RunEnded):
            self.end = event.reason
            return
        self._record_update(place, event.update)
        if isinstance(event, Notice) and event.kind == ROLLED_BACK:
            self.end = ROLLED_BACK
        if isinstance(event, Evaluated | CheckpointSaved):
            key = event_key(event)
            if self._offsets.get(key, math.inf) < self._stored_bytes and place >= self._synced_bytes:
                self.stale = True
            self._offsets[key] = place
        if isinstance(event, Evaluated):
            self._evaluated_ms.setdefault(event.update, int(float(record["time"]) * 1000))

    def _index_rows(self, place: int, first: int, count: int) -> None:
        if first <= self._last_row or count < 1:
            raise ValueError(f"update {first} after update {self._last_row}: two processes wrote at once")
        self._last_row = first + count - 1
        self._record_update(place, self._last_row)

    def _record_update(self, place: int, update: int) -> None:
        self._newest_update = max(self._newest_update, update)
        if place < self._stored_bytes:
            self._stored_update = max(self._stored_update, update)

    def _index_start(self, place: int, event: RunStarted, at: float) -> None:
        done = event.start_update
        if done < self._stored_update and place >= self._synced_bytes:
            self.stale = True
        if done == 0 or self.newest_start is None:
            self.started_s = at
        self._stored_update = min(self._stored_update, done)
        self._newest_update, self._last_row = min(self._newest_update, done), min(self._last_row, done)
        self._offsets = {key: where for key, where in self._offsets.items() if key[0] <= done}
        self._evaluated_ms = {update: ms for update, ms in self._evaluated_ms.items() if update <= done}
        self._starts.append(place)
        self._start_updates.append(done)
        self.newest_start, self.end = event, ""


def event_key(event: Evaluated | CheckpointSaved) -> Key:
    """Return what makes an evaluation or a checkpoint the same one again."""
    return event.update, f"split {event.split}" if isinstance(event, Evaluated) else f"path {event.path}"


def parse_line(line: bytes, name: object) -> dict[str, Any]:
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
    if record.get("schema", SCHEMA) not in READABLE_SCHEMAS:
        raise RunFolderError(
            f"{name} has schema {record['schema']!r}; this trueloop reads schemas up to {SCHEMA}.",
            fix="Use the trueloop that wrote the run, or a newer one.",
        )
    return record


def damaged_line_error(name: object, offset: int, error: Exception) -> InvalidData:
    """Return the error that names a line which is not a journal's."""
    return InvalidData(
        f"The line at byte {offset} of {name} is not a journal line: {error!r}.",
        why="The file was changed from outside or the disk is failing, so the rest cannot be trusted blindly.",
        fix="Restore the file from a copy, or delete that line if it can be spared.",
    )
