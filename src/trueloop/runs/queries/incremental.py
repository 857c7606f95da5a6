"""Update the index record of a long journal from its new lines, because reading the whole journal takes seconds."""

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

MIN_INCREMENTAL_BYTES = 2**20  # a smaller journal can be read from its start in at most 40 ms
_TAIL_BYTES = 2**20  # more than the longest lines, which hold a confusion matrix
_HASHED_BYTES = 512  # number of bytes before the read offset that identify the journal


def journal_position(run_dir: Path) -> list[Any]:
    """Return the offset after the last complete line of a journal, with a hash of the bytes before it.

    Raises:
        OSError: the journal cannot be read.
        ValueError: the last line is longer than `_TAIL_BYTES`.
    """
    with (run_dir / JOURNAL_NAME).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _TAIL_BYTES))
        offset = max(0, end - _TAIL_BYTES) + file.read().rindex(b"\n") + 1
        return [offset, _tail_hash(file, offset)]


def extend_record(run_dir: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Update a record from the lines that were added to its journal.

    Args:
        run_dir: the run folder.
        record: the previous record of the journal, with its `journal_position` under "read".

    Returns:
        The result of `read_record`, up to rounding of its seconds; None if the journal must be read completely, because
        it was rewritten, another process has started since then, or a line is invalid.
    """
    if record.get("problem") or "read" not in record:
        return None
    start, start_hash = record["read"]
    updater = _RecordUpdater(record)
    try:
        position = journal_position(run_dir)
        with (run_dir / JOURNAL_NAME).open("rb") as file:
            if position[0] < start or _tail_hash(file, start) != start_hash:
                return None
            file.seek(start)
            for line in file:
                if line.endswith(b"\n") and not updater.add_line(parse_json(line)):
                    return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return {**updater.record, "read": position}


class _RecordUpdater:
    """Adds lines to a record; skips lines that the record already includes."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record: dict[str, Any] = {**record, **{kind: dict(record[kind]) for kind in ("last", "lowest", "highest")}}
        self.record["end"] = record["end"] if record["end"] != ROLLED_BACK else ""

    def add_line(self, line: dict[str, Any]) -> bool:
        """Add one line; return False if the line changes the meaning of earlier lines."""
        if line.get("schema", SCHEMA) not in READABLE_SCHEMAS:
            return False
        if line["event"] in UPDATE_EVENTS:
            self._add_updates(line)
            return True
        event = parse_event(line)
        if isinstance(event, Evaluated):
            self._add_evaluation(event)
        elif isinstance(event, CheckpointSaved):
            self._add_checkpoint(event)
        elif isinstance(event, RunEnded):
            self.record["end"] = str(event.reason)
            if self.record["processes"] == 1:
                self.record["duration_s"] = event.seconds
        return isinstance(event, Evaluated | CheckpointSaved | RunEnded) or (
            isinstance(event, Notice) and event.kind != ROLLED_BACK
        )

    def _add_updates(self, line: dict[str, Any]) -> None:
        first, count = int(line["update"]), int(line.get("rows", 1))
        columns = [expand_column(line[name], count) for name in ("total_s", "wait_s", "skipped", "epoch")]
        for update, (total_s, wait_s, skipped, epoch) in enumerate(zip(*columns, strict=True), first):
            if update > self.record["update"]:
                self.record["update"], self.record["epoch"] = update, int(epoch)
                self.record["duration_s"] += max(float(total_s), float(wait_s))
                self.record["skipped"] += bool(skipped)

    def _add_evaluation(self, event: Evaluated) -> None:
        last, metric, is_new = self.record["last"], self.record["monitor"][0], False
        for name, value in event.metrics.items():
            name, point = f"{event.split}/{name}", [value, event.update, event.epoch]  # noqa: PLW2901
            if name in last and last[name][1] >= event.update:
                continue
            is_new, last[name] = True, point
            for extreme, sign in (("lowest", 1), ("highest", -1)):
                best = self.record[extreme].get(name)
                if math.isfinite(value) and (best is None or sign * value < sign * float(best[0])):
                    self.record[extreme][name] = point
                    if name == metric and (extreme == "lowest") == (self.record["monitor"][1] == "min"):
                        saved_update, folder = self.record["saved"]
                        self.record["best_checkpoint"] = folder if saved_update == event.update else None
        self.record["duration_s"] += event.seconds if is_new else 0.0

    def _add_checkpoint(self, event: CheckpointSaved) -> None:
        folder = f"checkpoints/{PurePath(event.path).name}"
        if event.update < self.record["saved"][0] or self.record["saved"] == [event.update, folder]:
            return
        metric, mode = self.record["monitor"]
        best = self.record["lowest" if mode == "min" else "highest"].get(metric)
        self.record["saved"], self.record["last_checkpoint"] = [event.update, folder], folder
        if best and best[1] == event.update:
            self.record["best_checkpoint"] = folder
        self.record["duration_s"] += event.seconds


def _tail_hash(file: Any, end: int) -> str:
    file.seek(max(0, end - _HASHED_BYTES))
    return hashlib.sha256(file.read(min(end, _HASHED_BYTES))).hexdigest()[:16]
