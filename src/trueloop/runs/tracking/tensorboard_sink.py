"""Write runs to TensorBoard event files, one folder per run, without importing torch."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trueloop.runs.tracking.sink import MetricPoint, RunMetadata, StoreBatch, StoreError, SyncCursor
from trueloop.runs.tracking.sync_cursor import CursorFile
from trueloop.runs.tracking.target import Target

CURSOR_NAME = "trueloop.json"
_EVENTS = "events.out.tfevents.*"


class TensorBoardSink:
    """A `Sink` that writes scalars, hyperparameters and notes as event files in FOLDER/RUN_NAME.

    Args:
        target: the folder, which is created if it does not exist.
    """

    is_idempotent = False
    can_append = True

    def __init__(self, target: Target) -> None:
        self._root = Path(target.address)
        self._cursor_file: CursorFile | None = None
        self._writer: Any = None

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Read the cursor in the folder of the run."""
        self._cursor_file = self._make_cursor_file(run)
        return self._cursor_file.read()

    def open_run(self, run: RunMetadata) -> None:
        """Open a new event file for this process."""
        cursor_file = self._cursor_file = self._cursor_file or self._make_cursor_file(run)
        if self._writer is not None:
            return
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        is_new = not any(cursor_file.folder.glob(_EVENTS))
        if not cursor_file.belongs_to_run:
            cursor_file.write(None)  # marks the folder as this run's before the first event file exists
        with self._translated_errors():
            self._writer = EventFileWriter(str(cursor_file.folder), max_queue_size=1000)
            if is_new:
                hyperparameters = {name: _parse_number(value) for name, value in run.params.items()}
                summary = hparams_pb(hyperparameters, trial_id=run.run_id, start_time_secs=run.started_ms / 1000)
                self._add_summary(0, run.started_ms, summary)
                self._add_text(0, run.started_ms, "run", _markdown_table(run.tags))

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Write metrics as scalars, and checkpoints and notes as text."""
        with self._translated_errors():
            for point in batch.points:
                self._add_scalars(point)
            for saved in batch.checkpoints:
                rows = {"path": saved.path, **{name: f"{value:g}" for name, value in saved.values.items()}}
                self._add_text(saved.step, saved.time_ms, "checkpoint", _markdown_table(rows))
            for note in batch.notes:
                self._add_text(note.step, note.time_ms, f"note/{note.kind}", _escape_markdown(note.message))
            self._write_cursor(cursor)

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Write the state of the run as text."""
        with self._translated_errors():
            self._add_text(0, time_ms, "state", state)
            self._write_cursor(cursor)

    def delete_run(self, run: RunMetadata) -> bool:
        """Delete the event files of a run; a folder without the cursor file of this run is not modified."""
        self.close()
        cursor_file = self._make_cursor_file(run)
        if not cursor_file.belongs_to_run:
            return False
        with self._translated_errors():
            for path in cursor_file.folder.glob(_EVENTS):
                path.unlink()
            cursor_file.remove()
        return True

    def close(self) -> None:
        """Close the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _make_cursor_file(self, run: RunMetadata) -> CursorFile:
        """Return the existing cursor file of a run, else the path of a new one in an unused folder."""
        for path in sorted(self._root.glob(f"*/{CURSOR_NAME}")):
            if (cursor_file := CursorFile(path, run.run_id)).belongs_to_run:
                return cursor_file
        folder = self._root / run.name
        if folder.exists() and any(folder.iterdir()):
            folder = self._root / f"{run.name}-{run.run_id[:8]}"
        return CursorFile(folder / CURSOR_NAME, run.run_id)

    def _write_cursor(self, cursor: SyncCursor) -> None:
        assert self._cursor_file is not None
        self._writer.flush()
        self._cursor_file.write(cursor)

    @contextmanager
    def _translated_errors(self) -> Generator[None]:
        """Convert errors of the file system to a `StoreError`."""
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: the folder name is not UTF-8
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise StoreError(
                f"The TensorBoard folder {str(self._root)!r} cannot be written: {reason}.",
                why="The journal is complete; only its copy in the store is not.",
                fix="Free space or choose another folder, then: trueloop runs sync.",
            ) from error

    def _add_scalars(self, point: MetricPoint) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue] - generated

        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._add_summary(point.step, point.time_ms, Summary(value=values))

    def _add_text(self, step: int, time_ms: int, tag: str, markdown: str) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add_summary(step, time_ms, text_pb(tag, markdown))

    def _add_summary(self, step: int, time_ms: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - generated

        self._writer.add_event(Event(wall_time=time_ms / 1000, step=step, summary=summary))


def _parse_number(text: str) -> float | str:
    try:
        return text if "_" in text else float(text)  # float() would parse 1_2 as 12
    except ValueError:
        return text


def _escape_markdown(text: str) -> str:
    """Escape all Markdown and HTML in a text."""
    return re.sub(r"([\\`*_{}\[\]<>()#+.!|~-])", r"\\\1", " ".join(text.split()))


def _markdown_table(rows: Mapping[str, str]) -> str:
    lines = (f"| {_escape_markdown(key)} | {_escape_markdown(value)} |" for key, value in rows.items())
    return "\n".join(["| | |", "|---|---|", *lines])
