"""TensorBoard as a store: event files, one folder per run, without torch."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trueloop.runs.tracking.sink import StoreBatch, RunMetadata, SyncCursor, MetricPoint, StoreError
from trueloop.runs.tracking.sync_cursor import CursorFile
from trueloop.runs.tracking.target import Target

CURSOR_NAME = "trueloop.json"
_EVENTS = "events.out.tfevents.*"


class TensorBoardSink:
    """Scalars, hyper-parameters and remarks as event files in FOLDER/NAME OF THE RUN.

    Args:
        target: names the folder, made where it is not.
    """

    is_idempotent = False
    can_append = True

    def __init__(self, target: Target) -> None:
        self._root = Path(target.address)
        self._cursor: CursorFile | None = None
        self._writer: Any = None

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Read how far the folder's event files go."""
        self._cursor = self._cursor_file(run)
        return self._cursor.read()

    def open_run(self, run: RunMetadata) -> None:
        """Begin an event file of this process."""
        mark = self._cursor = self._cursor or self._cursor_file(run)
        if self._writer is not None:
            return
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        first = not any(mark.folder.glob(_EVENTS))
        if not mark.belongs_to_run:
            mark.write(None)  # before there is a file of ours that nobody would know again
        with self._translated_errors():
            self._writer = EventFileWriter(str(mark.folder), max_queue_size=1000)
            if first:
                named = {name: _parse_number(value) for name, value in run.params.items()}
                shown = hparams_pb(named, trial_id=run.run_id, start_time_secs=run.started_ms / 1000)
                self._add_summary(0, run.started_ms, shown)
                self._add_text(0, run.started_ms, "run", _markdown_table(run.tags))

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Write scalars, and checkpoints and remarks as text."""
        with self._translated_errors():
            for point in batch.points:
                self._add_scalars(point)
            for saved in batch.checkpoints:
                rows = {"path": saved.path, **{name: f"{value:g}" for name, value in saved.values.items()}}
                self._add_text(saved.step, saved.time_ms, "checkpoint", _markdown_table(rows))
            for each in batch.notes:
                self._add_text(each.step, each.time_ms, f"note/{each.kind}", _escape_markdown(each.message))
            self._write_cursor(cursor)

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Write the state as text."""
        with self._translated_errors():
            self._add_text(0, time_ms, "state", state)
            self._write_cursor(cursor)

    def delete_run(self, card: RunMetadata) -> bool:
        """Delete the event files of the run's folder; a folder without our mark for this run is not touched."""
        self.close()
        mark = self._cursor_file(card)
        if not mark.belongs_to_run:
            return False
        with self._translated_errors():
            for path in mark.folder.glob(_EVENTS):
                path.unlink()
            mark.remove()
        return True

    def close(self) -> None:
        """Close the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _cursor_file(self, card: RunMetadata) -> CursorFile:
        """Return the run's own folder: where its mark is, else the first that is nobody's."""
        for path in sorted(self._root.glob(f"*/{CURSOR_NAME}")):
            if (mark := CursorFile(path, card.run_id)).belongs_to_run:
                return mark
        folder = self._root / card.name
        if folder.exists() and any(folder.iterdir()):
            folder = self._root / f"{card.name}-{card.run_id[:8]}"
        return CursorFile(folder / CURSOR_NAME, card.run_id)

    def _write_cursor(self, mark: SyncCursor) -> None:
        assert self._cursor is not None
        self._writer.flush()
        self._cursor.write(mark)

    @contextmanager
    def _translated_errors(self) -> Generator[None]:
        """Turn what the disk refuses into ours."""
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: the folder's name is no UTF-8
            said = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise StoreError(
                f"The TensorBoard folder {str(self._root)!r} cannot be written: {said}.",
                why="The journal is whole; only its copy there is not.",
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
        return text if "_" in text else float(text)  # float() would take 1_2 for 12
    except ValueError:
        return text


def _escape_markdown(text: str) -> str:
    """Show a text as it is where Markdown is expected: every mark of its own is escaped, HTML too."""
    return re.sub(r"([\\`*_{}\[\]<>()#+.!|~-])", r"\\\1", " ".join(text.split()))


def _markdown_table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {_escape_markdown(key)} | {_escape_markdown(value)} |" for key, value in rows.items())])
