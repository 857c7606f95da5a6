"""A run as lines of JSON on standard output, for log collectors: `trueloop train RECIPE --log-format json`."""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO, cast

from trueloop.core.protocols import Evaluated, RunEvent, RunStarted, UpdatesDone
from trueloop.runs.journal_lines import encode_line, event_record
from trueloop.runs.live_progress import Progress

LINE_S: Final = 5.0
"""Seconds between two lines of progress."""
BULKY: Final = ("source", "packages", "class_names")


class JsonLines:
    """Writes one line for each event, at once, and one of "progress" every few seconds; a `Reporter`.

    Events look as they do in the journal, but for what is long: tables, and of the facts the recipe's source and the
    list of packages. Single updates are in the journal only.

    Args:
        file: where to write; None = standard output.
        now: seconds since 1970.
    """

    def __init__(self, file: TextIO | None = None, *, now: Callable[[], float] = time.time) -> None:
        self._file, self._now = file or sys.stdout, now
        self._progress = Progress()
        self._began = self._told = now()

    def report(self, event: RunEvent) -> None:
        """Take one event in, and write what is due."""
        self._progress.observe(event)
        now = self._now()
        if not isinstance(event, UpdatesDone):
            self._write(_short(event_record(event, now)))
        elif now - self._told >= LINE_S:
            self._told = now
            self._write(self._line(now))
        if isinstance(event, RunStarted):
            self._began = self._told = now
        elif isinstance(event, Evaluated):
            self._told = now

    def close(self) -> None:
        """Nothing waits to be written."""

    def _line(self, now: float) -> dict[str, Any]:
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
            "remaining_s": progress.remaining_s(now - self._began),
        }

    def _write(self, record: Mapping[str, Any]) -> None:
        with suppress(OSError, ValueError):  # the reader is gone; the run is not, and the journal has it all
            self._file.write(encode_line(record))
            self._file.flush()


def _short(record: dict[str, Any]) -> dict[str, Any]:
    record.pop("tables", None)
    if "facts" in record:
        facts = cast("Mapping[str, Any]", record["facts"])
        record["facts"] = {name: fact for name, fact in facts.items() if name not in BULKY}
    return record
