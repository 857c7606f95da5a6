"""Write the live feed of a watched program: an append-only file of bounded size, and a file with its current position.

No file stays open between two writes, so the program may fork, or close files that it did not open. No write waits for
a reader or for the disk.

Each line of the feed is an object with an "event": "started", "numbers", "finding" or "ended". JSON has no NaN:
non-finite numbers are the strings "nan", "inf" and "-inf".
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, time
from typing import Any, Final, Protocol

from trueloop.core.downsampling import DownsampledSeries, max_points
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.live.columns import MAX_COLUMNS, round_norms
from trueloop.runs.live.folder import (
    FEED_NAME,
    PRIVATE_FLAGS,
    ensure_private_folder,
    new_program_name,
    remove_ended_programs,
)
from trueloop.runs.live.position_file import is_running, read_position, write_position
from trueloop.runs.live.process_alive import memory_mib, process_start_ticks

SCHEMA: Final = 1
WRITE_INTERVAL_S: Final = 0.4  # a page polls at this interval
TIMING_INTERVAL_S: Final = 1.0  # computing the time shares takes longer
MAX_FEED_BYTES: Final = 16 * 2**20  # downsampled series stay far below this for days
MAX_FINDINGS: Final = 200

Column = tuple[int, Sequence[str], Sequence[float | None]]
"""An update, the names of the layers, and their gradient norms."""


class RunStatus(Protocol):
    """Status of a watched run, as the sanitizer provides it."""

    @property
    def updates(self) -> int:
        """Number of optimizer steps so far."""
        ...

    def timing(self) -> Any:
        """Return the time of an update and its shares as a `core.findings.UpdateTiming`; None if it is unknown."""
        ...

    def newest_layer_norms(self) -> Column | None:
        """Return the newest gradient norms by layer; None if there are none."""
        ...


class LiveWriter:
    """Writes the feed of one program.

    Args:
        folder: the live folder; see `live_folder`.
        program: the "name", "command" and "folder" of the program, and further fields to display.
        rank: rank of this process; None if the program has only one process.

    Raises:
        OSError: the feed cannot be written.
    """

    def __init__(self, folder: Path, program: Mapping[str, Any], *, rank: int | None = None) -> None:
        ensure_private_folder(folder)
        remove_ended_programs(folder, lambda path: is_running(read_position(path)))
        started_at = time()
        self.name = new_program_name(started_at, rank=rank)
        self._process = os.getpid()
        self._path = folder.resolve() / self.name
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._start_s, self._due_s, self._timing_due_s = perf_counter(), 0.0, 0.0
        self._size = self._finding_count = 0
        self._series: dict[str, DownsampledSeries[float]] = {}
        self._columns: DownsampledSeries[None] = DownsampledSeries(MAX_COLUMNS)
        self._layers: list[str] = []
        self._unwritten: dict[str, list[list[float]]] = {}
        self._timing: dict[str, float] | None = None
        self._identity = {"pid": self._process, "start_ticks": process_start_ticks(self._process)}
        self._append("started", schema=SCHEMA, time=round(started_at, 3), rank=rank, **self._identity, **program)
        self._write_position(0)

    def add_value(self, series: str, update: int, value: float) -> None:
        """Add the newest value of a series, which is downsampled; the next `write_if_due` writes the value.

        Cost: 0.3 µs.
        """
        values = self._series.get(series)
        if values is None:
            values = self._series[series] = DownsampledSeries(max_points(series))
        if values.add(update, value):
            points = self._unwritten.setdefault(series, [[], []])
            points[0].append(update)
            points[1].append(value)

    def write_if_due(self, status: RunStatus) -> None:
        """Write new values, at most once per `WRITE_INTERVAL_S`.

        Cost: 0.1 µs without a write, 0.2 ms with a write.

        Raises:
            OSError: the disk is full, or the folder was removed.
        """
        if perf_counter() >= self._due_s:
            self._write(status)

    def write_finding(self, finding: Mapping[str, Any]) -> None:
        """Write a finding immediately; findings after the first `MAX_FINDINGS` are not written."""
        self._finding_count += 1
        if self._finding_count <= MAX_FINDINGS:
            self._append("finding", **finding)

    def write_end(self, updates: int, code: int, report: Mapping[str, Any]) -> None:
        """Write the end of the program.

        Args:
            updates: total number of optimizer steps.
            code: exit code.
            report: the sanitizer's report.
        """
        self._append("ended", code=code, updates=updates, **report)
        self._write_position(updates, ended=code)

    def _write(self, status: RunStatus) -> None:
        now_s = perf_counter()
        if now_s >= self._timing_due_s:
            timing = status.timing()
            self._timing = timing and {name: getattr(timing, name) for name in timing.__slots__}
            self._timing_due_s = now_s + TIMING_INTERVAL_S
        self.add_value("seconds", status.updates, round(now_s - self._start_s, 3))
        column, memory = self._norms_column(status), memory_mib()
        if memory is not None:
            self.add_value("memory_mib", status.updates, round(memory, 1))
        if self._unwritten or column:
            self._append("numbers", updates=status.updates, series=self._unwritten, **column)
            self._unwritten = {}
        self._write_position(status.updates)
        self._due_s = perf_counter() + WRITE_INTERVAL_S

    def _norms_column(self, status: RunStatus) -> dict[str, Any]:
        newest = status.newest_layer_norms()
        if newest is None:
            return {}
        update, layers, norms = newest
        if (self._columns.updates and self._columns.updates[-1] == update) or not self._columns.add(update, None):
            return {}
        column: dict[str, Any] = {"norms": [update, round_norms(norms)]}
        if layers != self._layers:
            self._layers = list(layers)
            column["layers"] = self._layers
        return column

    def _append(self, event: str, **fields: Any) -> None:
        line = encode_line({"event": event, "s": self._seconds(), **fields}).encode()
        if self._process != os.getpid() or self._size + len(line) > MAX_FEED_BYTES:
            return
        file = os.open(self._path / FEED_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT | PRIVATE_FLAGS, 0o600)
        remaining = line
        try:
            while remaining:
                remaining = remaining[os.write(file, remaining) :]
            self._size += len(line)
        except OSError:  # lines after a torn one would be unreadable
            os.ftruncate(file, os.fstat(file).st_size - (len(line) - len(remaining)))
            raise
        finally:
            os.close(file)

    def _write_position(self, updates: int, **fields: Any) -> None:
        if self._process != os.getpid():
            return
        position = {"s": self._seconds(), "updates": updates, "timing": self._timing, **self._identity, **fields}
        write_position(self._path, position)

    def _seconds(self) -> float:
        return round(perf_counter() - self._start_s, 3)
