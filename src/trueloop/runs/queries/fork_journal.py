"""Copy a journal up to one update, as the beginning of the journal of a new run."""

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
    """Write the journal of a new run that starts from an update of another run.

    The lines of the source up to the update are copied with their times; later lines are not copied. Lines that a
    resume superseded remain superseded.

    Args:
        source: run folder to copy from; it may be training.
        target: folder for the new journal, which must not exist yet.
        update: the last update to copy.
        run_id: id of the new run.
        note: last line of the new journal, which names the source.
        final_dir: final folder of the new run, which is written into the paths of its checkpoints.

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
    """Return the note that names the source of a rollback."""
    message = f"This run starts from the state of {source} after update {update}."
    details = {"run_id": run_id, "path": str(source), "update": update}
    return Notice(update=update, kind=ROLLED_BACK, message=message, details=details)


def _records_up_to(lines: Iterable[bytes], update: int) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.endswith(b"\n"):  # torn, or being written
            return
        record = json.loads(line)
        if record["event"] in UPDATE_EVENTS:
            record = truncate_updates(record, update)
            if record is not None:
                yield record
            continue
        record_update = int(record["start_update"] if record["event"] == "run_started" else record["update"])
        if record_update <= update and record["event"] != "run_ended":
            yield record


def _with_new_identity(record: Mapping[str, Any], run_id: str, final_dir: Path) -> dict[str, Any]:
    if record["event"] == "run_started":
        return {**record, "facts": {**record["facts"], "run_id": run_id}}
    if record["event"] == "checkpoint_saved":
        return {**record, "path": str(final_dir / "checkpoints" / PurePath(record["path"]).name)}
    return dict(record)
