"""TensorBoard as a store: event files, one folder per run, without torch."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trueloop.runs.tracking.sink import MetricPoint, RunMetadata, StoreBatch, StoreError, SyncCursor
from trueloop.runs.tracking.sync_cursor import MarkFile
from trueloop.runs.tracking.target import Target

MARK_NAME = "trueloop.json"
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
        self._mark: MarkFile | None = None
        self._writer: Any = None

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Read how far the folder's event files go."""
        self._mark = self._place(run)
        return self._mark.read()

    def open_run(self, run: RunMetadata) -> None:
        """Begin an event file of this process."""
        mark = self._mark = self._mark or self._place(run)
        if self._writer is not None:
            return
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        first = not any(mark.folder.glob(_EVENTS))
        if not mark.is_ours:
            mark.write(None)  # before there is a file of ours that nobody would know again
        with self._writing():
            self._writer = EventFileWriter(str(mark.folder), max_queue_size=1000)
            if first:
                named = {name: _number(value) for name, value in run.params.items()}
                shown = hparams_pb(named, trial_id=run.run_id, start_time_secs=run.started_ms / 1000)
                self._add(0, run.started_ms, shown)
                self._say(0, run.started_ms, "run", _table(run.tags))

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Write scalars, and checkpoints and remarks as text."""
        with self._writing():
            for point in batch.points:
                self._scalars(point)
            for saved in batch.checkpoints:
                rows = {"path": saved.path, **{name: f"{value:g}" for name, value in saved.values.items()}}
                self._say(saved.step, saved.time_ms, "checkpoint", _table(rows))
            for each in batch.notes:
                self._say(each.step, each.time_ms, f"note/{each.kind}", _plain(each.message))
            self._put(cursor)

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Write the state as text."""
        with self._writing():
            self._say(0, time_ms, "state", state)
            self._put(cursor)

    def erase(self, card: RunMetadata) -> bool:
        """Delete the event files of the run's folder; a folder without our mark for this run is not touched."""
        self.close()
        mark = self._place(card)
        if not mark.is_ours:
            return False
        with self._writing():
            for path in mark.folder.glob(_EVENTS):
                path.unlink()
            mark.remove()
        return True

    def close(self) -> None:
        """Close the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _place(self, card: RunMetadata) -> MarkFile:
        """Return the run's own folder: where its mark is, else the first that is nobody's."""
        for path in sorted(self._root.glob(f"*/{MARK_NAME}")):
            if (mark := MarkFile(path, card.run_id)).is_ours:
                return mark
        folder = self._root / card.name
        if folder.exists() and any(folder.iterdir()):
            folder = self._root / f"{card.name}-{card.run_id[:8]}"
        return MarkFile(folder / MARK_NAME, card.run_id)

    def _put(self, mark: SyncCursor) -> None:
        assert self._mark is not None
        self._writer.flush()
        self._mark.write(mark)

    @contextmanager
    def _writing(self) -> Generator[None]:
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

    def _scalars(self, point: MetricPoint) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue] - generated

        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._add(point.step, point.time_ms, Summary(value=values))

    def _say(self, step: int, time_ms: int, tag: str, markdown: str) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(step, time_ms, text_pb(tag, markdown))

    def _add(self, step: int, time_ms: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - generated

        self._writer.add_event(Event(wall_time=time_ms / 1000, step=step, summary=summary))


def _number(text: str) -> float | str:
    try:
        return text if "_" in text else float(text)  # float() would take 1_2 for 12
    except ValueError:
        return text


def _plain(text: str) -> str:
    """Show a text as it is where Markdown is expected: every mark of its own is escaped, HTML too."""
    return re.sub(r"([\\`*_{}\[\]<>()#+.!|~-])", r"\\\1", " ".join(text.split()))


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {_plain(key)} | {_plain(value)} |" for key, value in rows.items())])
