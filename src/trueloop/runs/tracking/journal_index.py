"""Index a journal to know which lines are current: a resume supersedes the lines after its checkpoint."""

import json
import math
import re
from bisect import bisect_right
from io import FileIO
from itertools import accumulate
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
    """An index of the lines of a journal; update rows are not kept in memory.

    Args:
        file: the journal, open for reading.
        synced_bytes: byte offset; the store already lacks the lines that resumes before this offset superseded.
        stored_bytes: byte offset; lines before this offset may be in the store. None = all lines.

    Cost: half a second per 10**6 updates.
    """

    def __init__(self, file: FileIO, *, synced_bytes: int = 0, stored_bytes: int | None = 0) -> None:
        self.size = 0
        """Number of indexed bytes; only complete lines are indexed."""
        self.newest_start: RunStarted | None = None
        """The start event of the newest process."""
        self.started_s = 0.0
        """Start time of the first process of the run, in seconds since 1970."""
        self.end = ""
        """End reason of the newest process, or "rolled_back" for a rollback that was not continued; "" = no end."""
        self.stale = False
        """True if the store may contain superseded lines."""
        self.first_line = b""
        self._file = file
        self._synced_bytes = synced_bytes
        self._stored_bytes = math.inf if stored_bytes is None else stored_bytes
        self._stored_update = 0  # newest update in the store
        self._newest_update = 0  # newest update of a current line
        self._last_row = 0  # newest update of a current update row
        self._start_offsets: list[int] = []
        self._start_updates: list[int] = []
        self._min_later_start: list[int] = []
        self._newest_offsets: dict[Key, int] = {}
        self._evaluated_ms: dict[int, int] = {}

    def extend(self, upto: int | None = None) -> None:
        """Index the lines written since the previous call.

        Args:
            upto: byte offset to stop at; None = the end of the journal.

        Raises:
            InvalidData: a complete line is invalid.
            RunFolderError: the journal has another schema.
        """
        for offset, line in complete_lines(self._file, self.size, upto):
            try:
                self._index_line(line)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise damaged_line_error(self._file.name, offset, error) from error
            self.size = offset + len(line)
        self._min_later_start = list(accumulate(reversed(self._start_updates), min))[::-1]

    def mark_synced(self) -> None:
        """Record that the store now contains all current lines of the index."""
        self._synced_bytes = self._stored_bytes = self.size
        self._stored_update = self._newest_update
        self.stale = False

    def is_current(self, offset: int, update: int, key: Key | None = None) -> bool:
        """Return True if no later line supersedes this line.

        Args:
            offset: byte offset of the line.
            update: update of the line.
            key: `event_key` of an evaluation or a checkpoint, whose last line is current; None for other lines.
        """
        next_start = bisect_right(self._start_offsets, offset)
        if next_start < len(self._min_later_start) and update > self._min_later_start[next_start]:
            return False
        return key is None or self._newest_offsets.get(key) == offset

    def evaluated_ms(self, update: int) -> int | None:
        """Return the time at which an update was first evaluated, in ms since 1970; None if it was not evaluated."""
        return self._evaluated_ms.get(update)

    def _index_line(self, line: bytes) -> None:
        offset = self.size
        self.first_line = self.first_line or line
        self.end = "" if self.end == ROLLED_BACK else self.end
        if rows := _ROWS.match(line):
            self._index_rows(offset, int(rows[1]), int(rows[2]))
            return
        record = parse_line(line, self._file.name)
        if record["event"] in UPDATE_EVENTS:
            self._index_rows(offset, int(record["update"]), int(record.get("rows", 1)))
            return
        event = parse_event(record)
        if isinstance(event, RunStarted):
            self._index_start(offset, event, float(record["time"]))
            return
        if isinstance(event, RunEnded):
            self.end = event.reason
            return
        self._record_update(offset, event.update)
        if isinstance(event, Notice) and event.kind == ROLLED_BACK:
            self.end = ROLLED_BACK
        if isinstance(event, Evaluated | CheckpointSaved):
            key = event_key(event)
            if self._newest_offsets.get(key, math.inf) < self._stored_bytes and offset >= self._synced_bytes:
                self.stale = True
            self._newest_offsets[key] = offset
        if isinstance(event, Evaluated):
            self._evaluated_ms.setdefault(event.update, int(float(record["time"]) * 1000))

    def _index_rows(self, offset: int, first: int, count: int) -> None:
        if first <= self._last_row or count < 1:
            raise ValueError(f"update {first} after update {self._last_row}: two processes wrote at once")
        self._last_row = first + count - 1
        self._record_update(offset, self._last_row)

    def _record_update(self, offset: int, update: int) -> None:
        self._newest_update = max(self._newest_update, update)
        if offset < self._stored_bytes:
            self._stored_update = max(self._stored_update, update)

    def _index_start(self, offset: int, event: RunStarted, time_s: float) -> None:
        start_update = event.start_update
        if start_update < self._stored_update and offset >= self._synced_bytes:
            self.stale = True
        if start_update == 0 or self.newest_start is None:
            self.started_s = time_s
        self._stored_update = min(self._stored_update, start_update)
        self._newest_update, self._last_row = min(self._newest_update, start_update), min(self._last_row, start_update)
        self._newest_offsets = {key: offset for key, offset in self._newest_offsets.items() if key[0] <= start_update}
        self._evaluated_ms = {update: ms for update, ms in self._evaluated_ms.items() if update <= start_update}
        self._start_offsets.append(offset)
        self._start_updates.append(start_update)
        self.newest_start, self.end = event, ""


def event_key(event: Evaluated | CheckpointSaved) -> Key:
    """Return a key that identifies an evaluation or a checkpoint within a run."""
    return event.update, f"split {event.split}" if isinstance(event, Evaluated) else f"path {event.path}"


def parse_line(line: bytes, name: object) -> dict[str, Any]:
    """Parse one line into a record.

    Raises:
        ValueError, TypeError: the line is not a JSON object.
        RunFolderError: the record has another schema.
    """
    record: Any = parse_json(line)
    if b"\\ud" in line:  # lone surrogates come from names that are not UTF-8; no store accepts them
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
    """Return the error for an invalid line of a journal."""
    return InvalidData(
        f"The line at byte {offset} of {name} is not a journal line: {error!r}.",
        why="The file was changed by another program or the disk is failing, so the rest may be wrong as well.",
        fix="Restore the file from a copy, or delete that line if you do not need it.",
    )
