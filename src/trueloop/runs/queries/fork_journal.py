"""A journal up to one update, as the beginning of another run's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from trueloop.core.errors import RunFolderError
from trueloop.core.protocols import Notice
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.journal_lines import UPDATE_EVENTS, encode_line, event_record, truncate_updates
from trueloop.runs.queries.overview import ROLLED_BACK


def fork_journal(source: Path, target: Path, *, update: int, run_id: str, note: Notice, final_dir: Path) -> None:
    """Write the journal of a run that starts where another one was.

    What the source did up to the update is copied line by line, with its times; how it went on and ended is not. What
    a resume superseded stays superseded.

    Args:
        source: run folder to copy from; it may be training.
        target: folder that gets the journal, and has none.
        update: the last one to copy.
        run_id: of the new run.
        note: the last line: where all this comes from.
        final_dir: the folder the new run will lie in, to name its checkpoints.

    Raises:
        RunFolderError: the journal cannot be read or written.
    """
    try:
        with (source / JOURNAL_NAME).open("rb") as lines, (target / JOURNAL_NAME).open("x", encoding="utf-8") as file:
            for record in _records_up_to(lines, update):
                file.write(encode_line(_with_new_identity(record, run_id, final_dir)))
            file.write(encode_line(event_record(note, time.time())))
            file.flush()
    except OSError as error:
        raise RunFolderError(f"The journal of {source} cannot be copied: {error.strerror or error}.") from error


def rollback_note(*, source: Path, run_id: str, update: int) -> Notice:
    """Return the note that says where a run comes from."""
    message = f"Starts where {source} was after update {update}."
    return Notice(
        update=update,
        kind=ROLLED_BACK,
        message=message,
        details={"run_id": run_id, "path": str(source), "update": update},
    )


def _records_up_to(lines: Iterable[bytes], update: int) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.endswith(b"\n"):  # torn, or being written right now
            return
        record = json.loads(line)
        if record["event"] in UPDATE_EVENTS:
            record = truncate_updates(record, update)
            if record is not None:
                yield record
            continue
        at = int(record["start_update"] if record["event"] == "run_started" else record["update"])
        if at <= update and record["event"] != "run_ended":
            yield record


def _with_new_identity(record: Mapping[str, Any], run_id: str, final_dir: Path) -> dict[str, Any]:
    if record["event"] == "run_started":
        return {**record, "facts": {**record["facts"], "run_id": run_id}}
    if record["event"] == "checkpoint_saved":
        return {**record, "path": str(final_dir / "checkpoints" / PurePath(record["path"]).name)}
    return dict(record)
