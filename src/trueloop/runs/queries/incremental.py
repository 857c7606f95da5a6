"""The record of a long journal that has grown, from the lines that are new: reading all of it again takes seconds."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from trueloop.core.json_text import parse_json
from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.journal_lines import READABLE_SCHEMAS, SCHEMA, UPDATE_EVENTS, expand_column, parse_event
from trueloop.runs.queries.overview import ROLLED_BACK

LARGE = 2**20  # bytes; below, reading a journal from its start takes 40 ms at most
_TAIL = 2**20  # bytes: the longest lines hold a confusion matrix
_MARK = 512  # bytes before the place up to which it was read, which tell whether it is still the same journal


def place(run_dir: Path) -> list[Any]:
    """Say up to which byte a journal has whole lines right now, with a hash of what is before it.

    Raises:
        OSError: as the system says.
        ValueError: its last line is longer than any that is worth the search.
    """
    with (run_dir / JOURNAL_NAME).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _TAIL))
        whole = end - _TAIL + file.read().rindex(b"\n") + 1 if end > _TAIL else file.read().rindex(b"\n") + 1
        return [whole, _mark(file, whole)]


def extended(run_dir: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Bring a record up to date.

    Args:
        run_dir: with a journal that was only appended to since.
        record: of the journal as it was, with its `place` under "read".

    Returns:
        What `record_of` would, to the rounding of its seconds; None where only reading all of it can tell: it was
        written anew, another process has begun since, or a line makes no sense.
    """
    if record.get("problem") or "read" not in record:
        return None
    start, mark = record["read"]
    grown = _Growth(record)
    try:
        now = place(run_dir)
        with (run_dir / JOURNAL_NAME).open("rb") as file:
            if now[0] < start or _mark(file, start) != mark:
                return None
            file.seek(start)
            for line in file:
                if line.endswith(b"\n") and not grown.take(parse_json(line)):
                    return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return {**grown.record, "read": now}


class _Growth:
    """Takes lines; one that was already counted, because it was written while the record was made, is passed over."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record: dict[str, Any] = {**record, **{kind: dict(record[kind]) for kind in ("last", "lowest", "highest")}}
        self.record["end"] = record["end"] if record["end"] != ROLLED_BACK else ""

    def take(self, line: dict[str, Any]) -> bool:
        """Take one line; False where it changes what came before."""
        if line.get("schema", SCHEMA) not in READABLE_SCHEMAS:
            return False
        if line["event"] in UPDATE_EVENTS:
            self._updates(line)
            return True
        event = parse_event(line)
        if isinstance(event, Evaluated):
            self._evaluated(event)
        elif isinstance(event, CheckpointSaved):
            self._saved(event)
        elif isinstance(event, RunEnded):
            self.record["end"] = str(event.reason)
            if self.record["processes"] == 1:
                self.record["duration_s"] = event.seconds
        return isinstance(event, Evaluated | CheckpointSaved | RunEnded) or (
            isinstance(event, Notice) and event.kind != ROLLED_BACK
        )

    def _updates(self, line: dict[str, Any]) -> None:
        first, count = int(line["update"]), int(line.get("rows", 1))
        columns = [expand_column(line[name], count) for name in ("total_s", "wait_s", "skipped", "epoch")]
        for update, (total_s, wait_s, skipped, epoch) in enumerate(zip(*columns, strict=True), first):
            if update > self.record["update"]:
                self.record["update"], self.record["epoch"] = update, int(epoch)
                self.record["duration_s"] += max(float(total_s), float(wait_s))
                self.record["skipped"] += bool(skipped)

    def _evaluated(self, event: Evaluated) -> None:
        last, metric, new = self.record["last"], self.record["monitor"][0], False
        for name, value in event.metrics.items():
            name, point = f"{event.split}/{name}", [value, event.update, event.epoch]  # noqa: PLW2901
            if name in last and last[name][1] >= event.update:
                continue
            new, last[name] = True, point
            for kind, sign in (("lowest", 1), ("highest", -1)):
                best = self.record[kind].get(name)
                if math.isfinite(value) and (best is None or sign * value < sign * float(best[0])):
                    self.record[kind][name] = point
                    if name == metric and (kind == "lowest") == (self.record["monitor"][1] == "min"):
                        saved, folder = self.record["saved"]
                        self.record["best_checkpoint"] = folder if saved == event.update else None
        self.record["duration_s"] += event.seconds if new else 0.0

    def _saved(self, event: CheckpointSaved) -> None:
        folder = f"checkpoints/{PurePath(event.path).name}"
        if event.update < self.record["saved"][0] or self.record["saved"] == [event.update, folder]:
            return
        metric, mode = self.record["monitor"]
        best = self.record["lowest" if mode == "min" else "highest"].get(metric)
        self.record["saved"], self.record["last_checkpoint"] = [event.update, folder], folder
        if best and best[1] == event.update:
            self.record["best_checkpoint"] = folder
        self.record["duration_s"] += event.seconds


def _mark(file: Any, end: int) -> str:
    file.seek(max(0, end - _MARK))
    return hashlib.sha256(file.read(min(end, _MARK))).hexdigest()[:16]
