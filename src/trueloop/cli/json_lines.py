"""Print a run as lines of JSON, for log collectors: `trueloop train RECIPE --log-format json`."""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO, cast

from trueloop.core.protocols import Evaluated, RunEvent, RunStarted, UpdatesDone
from trueloop.runs.journal_lines import encode_line, event_record
from trueloop.runs.live_progress import Progress

PROGRESS_INTERVAL_S: Final = 5.0
"""Seconds between two "progress" lines."""
LONG_FACTS: Final = ("source", "packages", "class_names")


class JsonLines:
    """Writes one line per event immediately, and a "progress" line every few seconds; a `Reporter`.

    Events have the format of the journal, without tables, the recipe's source code, and lists of packages and classes.
    Single updates are only in the journal.

    Args:
        file: output stream; None = standard output.
        now: function that returns the seconds since 1970.
    """

    def __init__(self, file: TextIO | None = None, *, now: Callable[[], float] = time.time) -> None:
        self._file, self._now = file or sys.stdout, now
        self._progress = Progress()
        self._started_s = self._last_line_s = now()

    def report(self, event: RunEvent) -> None:
        """Process one event, and write the lines that are due."""
        self._progress.observe(event)
        now = self._now()
        if not isinstance(event, UpdatesDone):
            self._write(_without_long_facts(event_record(event, now)))
        elif now - self._last_line_s >= PROGRESS_INTERVAL_S:
            self._last_line_s = now
            self._write(self._progress_record(now))
        if isinstance(event, RunStarted):
            self._started_s = self._last_line_s = now
        elif isinstance(event, Evaluated):
            self._last_line_s = now

    def close(self) -> None:
        """Do nothing: every line is already written."""

    def _progress_record(self, now: float) -> dict[str, Any]:
        progress, last = self._progress, self._progress.last
        return {
            "event": "progress",
            "time": round(now, 3),
            "epoch": progress.epoch,
            "update": progress.update,
            "updates": progress.started.updates if progress.started else None,
            "loss": progress.loss,
            "grad_norm": last.grad_norm if last else None,
            "lr": last.lr if last else None,
            "updates_per_s": progress.updates_per_s,
            "examples_per_s": progress.examples_per_s,
            "waiting_share": progress.waiting_share,
            "skipped": progress.skipped,
            "remaining_s": progress.remaining_s(now - self._started_s),
        }

    def _write(self, record: Mapping[str, Any]) -> None:
        with suppress(OSError, ValueError):  # the reader closed the stream; the run goes on
            self._file.write(encode_line(record))
            self._file.flush()


def _without_long_facts(record: dict[str, Any]) -> dict[str, Any]:
    record.pop("tables", None)
    if "facts" in record:
        facts = cast("Mapping[str, Any]", record["facts"])
        record["facts"] = {name: fact for name, fact in facts.items() if name not in LONG_FACTS}
    return record
