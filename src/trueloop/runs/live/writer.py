"""What a watched program tells while it runs: an append-only file of bounded size, and one with where it is now.

Nothing stays open between two writes: a program that closes every file it did not open, or forks, is not disturbed and
does not disturb. Nothing waits for a reader, and nothing for the disk.

Each line of the feed is an object with an "event": "begun", "numbers", "finding", "ended". JSON knows no NaN: numbers
that are not finite are "nan", "inf" and "-inf".
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, time
from typing import Any, Final, Protocol

from trueloop.core.downsampling import DownsampledSeries
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.live.folder import FEED_NAME, ensure_private_folder, new_program_name, remove_ended_programs
from trueloop.runs.live.position_file import is_running, read_position, write_position
from trueloop.runs.live.process_alive import memory_mib, process_start_ticks

SCHEMA: Final = 1
WRITE_INTERVAL_S: Final = 0.4  # between two writes: as fast as a page asks
TIMING_INTERVAL_S: Final = 1.0  # between two looks at where the time goes, which take longer
LARGEST: Final = 16 * 2**20  # bytes of a feed; thinned series stay far below for days
FINDINGS: Final = 200
COLUMNS: Final = 240  # updates with norms by layer
_CLOSED, _NO_LINK = getattr(os, "O_CLOEXEC", 0), getattr(os, "O_NOFOLLOW", 0)

Column = tuple[int, Sequence[str], Sequence[float | None]]
"""Update, layers, norms."""


class Now(Protocol):
    """Where a watched run is, as the watch tells it."""

    @property
    def updates(self) -> int:
        """Steps of optimizers so far."""
        ...

    def timing(self) -> Any:
        """Return the seconds of an update and their parts as a `core.findings.UpdateTiming`; or None."""
        ...

    def newest_layers(self) -> Column | None:
        """Return the newest norms by layer."""
        ...


class LiveWriter:
    """Writes one program's feed.

    Args:
        folder: of all feeds; see `live_folder`.
        about: what the program is: "name", "command", "folder", and whatever else a page shall tell.
        rank: of this process among several.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], *, rank: int | None = None) -> None:
        ensure_private_folder(folder)
        remove_ended_programs(folder, lambda path: is_running(read_position(path)))
        began = time()
        self.name = new_program_name(began, rank=rank)
        self._process = os.getpid()
        self._path = folder.resolve() / self.name
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._start_s, self._due_s, self._timing_due_s = perf_counter(), 0.0, 0.0
        self._size = self._findings = 0
        self._kept: dict[str, DownsampledSeries[float]] = {}
        self._columns: DownsampledSeries[None] = DownsampledSeries(COLUMNS)
        self._layers: list[str] = []
        self._fresh: dict[str, list[list[float]]] = {}
        self._timing: dict[str, float] | None = None
        identity = {"pid": self._process, "mark": process_start_ticks(self._process)}
        self._identity = identity
        self._append("begun", schema=SCHEMA, time=round(began, 3), rank=rank, **identity, **about)
        self._tell(0)

    def value(self, series: str, update: int, value: float) -> None:
        """Take in the newest value of a series; it is written with the next look, unless the series is long by then.

        Cost: 0.3 us.
        """
        kept = self._kept.get(series)
        if kept is None:
            kept = self._kept[series] = DownsampledSeries()
        if kept.add(update, value):
            points = self._fresh.setdefault(series, [[], []])
            points[0].append(update)
            points[1].append(value)

    def look(self, now: Now) -> None:
        """Write what is new, at most every `WRITE_INTERVAL_S`.

        Cost: 0.1 us; when it writes, 0.2 ms.

        Raises:
            OSError: the disk is full, or the folder has gone.
        """
        if perf_counter() >= self._due_s:
            self._write(now)

    def finding(self, finding: Mapping[str, Any]) -> None:
        """Write a finding, at once; the first `FINDINGS` of them."""
        self._findings += 1
        if self._findings <= FINDINGS:
            self._append("finding", **finding)

    def end(self, updates: int, code: int, told: Mapping[str, Any]) -> None:
        """Write how the program ended.

        Args:
            updates: steps of optimizers in all.
            code: what it exits with.
            told: its report.
        """
        self._append("ended", code=code, updates=updates, **told)
        self._tell(updates, ended=code)

    def _write(self, now: Now) -> None:
        at_s = perf_counter()
        if at_s >= self._timing_due_s:
            timing = now.timing()
            self._timing = timing and {name: getattr(timing, name) for name in timing.__slots__}
            self._timing_due_s = at_s + TIMING_INTERVAL_S
        self.value("seconds", now.updates, round(at_s - self._start_s, 3))
        column, memory = self._column(now), memory_mib()
        if memory is not None:
            self.value("memory_mib", now.updates, round(memory, 1))
        if self._fresh or column:
            self._append("numbers", updates=now.updates, series=self._fresh, **column)
            self._fresh = {}
        self._tell(now.updates)
        self._due_s = perf_counter() + WRITE_INTERVAL_S

    def _column(self, now: Now) -> dict[str, Any]:
        newest = now.newest_layers()
        if newest is None:
            return {}
        update, layers, norms = newest
        if (self._columns.updates and self._columns.updates[-1] == update) or not self._columns.add(update, None):
            return {}
        told: dict[str, Any] = {"norms": [update, [None if norm is None else _short(norm) for norm in norms]]}
        if layers != self._layers:
            self._layers = list(layers)
            told["layers"] = self._layers
        return told

    def _append(self, event: str, **fields: Any) -> None:
        line = encode_line({"event": event, "s": self._s(), **fields}).encode()
        if self._process != os.getpid() or self._size + len(line) > LARGEST:
            return
        file = os.open(self._path / FEED_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _CLOSED | _NO_LINK, 0o600)
        rest = line
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
            self._size += len(line)
        except OSError:  # what follows a torn line could not be read
            os.ftruncate(file, os.fstat(file).st_size - (len(line) - len(rest)))
            raise
        finally:
            os.close(file)

    def _tell(self, updates: int, **fields: Any) -> None:
        if self._process != os.getpid():
            return
        told = {"s": self._s(), "updates": updates, "timing": self._timing, **self._identity, **fields}
        write_position(self._path, told)

    def _s(self) -> float:
        return round(perf_counter() - self._start_s, 3)


def _short(norm: float) -> float:
    return float(f"{norm:.4g}")
