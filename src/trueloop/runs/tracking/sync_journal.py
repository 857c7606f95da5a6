"""Sync one journal to one store: write missing records, or rewrite the run if a resume superseded stored lines."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Literal

from trueloop.core.errors import RunFolderError
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.queries.running import is_training
from trueloop.runs.tracking.journal_file import checksum_before, complete_lines, journal_lock
from trueloop.runs.tracking.journal_index import JournalIndex, damaged_line_error, parse_line
from trueloop.runs.tracking.run_metadata import make_run_metadata
from trueloop.runs.tracking.sink import MetricPoint, RunMetadata, RunNote, SavedCheckpoint, Sink, StoreBatch, SyncCursor
from trueloop.runs.tracking.target import Target
from trueloop.runs.tracking.translation import Item, Translator

MAX_SLICE_BYTES = 64 * 1024  # about 1,000 updates: a second of work for a database


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The result of syncing one run."""

    outcome: Literal["complete", "copied", "rewritten", "busy", "empty"]
    """complete: nothing was missing; copied: missing lines were written; rewritten: the run was written from scratch;
    busy: another process is syncing the run; empty: no run had started."""
    state: str
    """End reason in the journal, else "running", "killed" or "unknown"; "" if the state was not determined."""
    lines: int
    """Number of journal lines that were written."""


class JournalSync:
    """Syncs one journal to one store.

    Args:
        file: the journal, opened unbuffered; the caller holds its lock.
        folder: name of the run folder.
        sink: the store; the caller closes it.
        rewrite: True to delete the run in the store and write it from scratch.

    Raises:
        StoreError: the store failed; to retry, create a new `JournalSync`, which reads the state of the store again.
        InvalidData: the journal is damaged.
    """

    def __init__(self, file: FileIO, folder: str, sink: Sink, *, rewrite: bool = False) -> None:
        self.lines = 0
        self.rewritten = False
        self._file, self._folder, self._sink = file, folder, sink
        self._rewrite = rewrite
        self._index = JournalIndex(file)
        self._run: RunMetadata | None = None
        self._cursor: SyncCursor | None = None
        self._offset = 0
        self._is_open = False
        self._translator = Translator(self._index, {})

    def sync_new_lines(self, upto: int | None = None) -> None:
        """Write the lines that were added to the journal.

        Args:
            upto: byte offset to stop at; None = the end of the journal.
        """
        self._index.extend(upto)
        if self._index.newest_start is None:
            return
        started = self._index.newest_start
        run = make_run_metadata(
            started, folder=self._folder, started_s=self._index.started_s, first_line=self._index.first_line
        )
        if self._run is None:
            self._resume_or_start_over(run, upto)
        elif self._index.stale or run.fingerprint != self._run.fingerprint:
            self._start_over(run)
        elif run != self._run and self._is_open:
            self._sink.open_run(run)
        self._run = run
        while self._offset < self._index.size:
            self._write_slice()
        self._index.mark_synced()

    def finish(self, *, alive: bool | None) -> str:
        """Write the state of the run if the store lacks it, and return the state; "" if no run had started.

        Args:
            alive: True if a process is still training, False if none is, None if this is unknown.
        """
        if self._run is None or self._index.newest_start is None:
            return ""
        state = self._index.end or {True: "running", False: "killed", None: "unknown"}[alive]
        if self._cursor and self._cursor.state == state:
            return state
        self._ensure_open()
        self._cursor = self._make_cursor(state)
        self._sink.finish_run(state, self._translator.time_ms, self._cursor)
        return state

    def _resume_or_start_over(self, run: RunMetadata, upto: int | None) -> None:
        """Continue from the cursor in the store; start over if the cursor is missing or does not match the journal."""
        self._run = run
        cursor = None if self._rewrite else self._sink.find_cursor(run)
        if cursor is None or not self._can_resume(cursor, run):
            self._start_over(run)
            return
        offset = cursor.journal_bytes
        index = JournalIndex(self._file, synced_bytes=offset, stored_bytes=offset if cursor.state else None)
        index.extend(upto)
        if index.stale:
            self._start_over(run)
            return
        self._index, self._cursor, self._offset = index, cursor, offset
        self._translator = Translator(index, cursor.translator_state)

    def _can_resume(self, cursor: SyncCursor, run: RunMetadata) -> bool:
        if cursor.fingerprint != run.fingerprint or (not cursor.state and not self._sink.is_idempotent):
            return False
        if cursor.journal_bytes == 0:
            return True
        return cursor.checksum != "" and checksum_before(self._file, cursor.journal_bytes) == cursor.checksum

    def _start_over(self, run: RunMetadata) -> None:
        """Delete the run in the store and write it from scratch."""
        self.rewritten = self._sink.delete_run(run) or self.rewritten
        self._is_open = False
        self._run, self._cursor, self._offset = run, None, 0
        self._translator = Translator(self._index, {})
        self._ensure_open()

    def _ensure_open(self) -> None:
        """Open the run in the store for writing."""
        if self._is_open:
            return
        assert self._run is not None
        if self._cursor and not self._sink.can_append:
            self._start_over(self._run)
            while self._offset < self._index.size:
                self._write_slice()
            return
        self._is_open = True
        self._sink.open_run(self._run)
        self._cursor = self._make_cursor("")
        self._sink.write(StoreBatch(), self._cursor)

    def _write_slice(self) -> None:
        self._ensure_open()
        items: list[Item] = []
        start = self._offset
        for offset, line in complete_lines(self._file, start, min(self._index.size, start + MAX_SLICE_BYTES)):
            try:
                items += self._translator.translate(offset, parse_line(line, self._file.name))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise damaged_line_error(self._file.name, offset, error) from error
            self._offset = offset + len(line)
            self.lines += 1
        if self._offset == start:
            return
        self._cursor = self._make_cursor("")
        self._sink.write(_make_batch(items), self._cursor)

    def _make_cursor(self, state: str) -> SyncCursor:
        assert self._run is not None
        return SyncCursor(
            journal_bytes=self._offset,
            checksum=checksum_before(self._file, self._offset),
            fingerprint=self._run.fingerprint,
            state=state,
            translator_state=self._translator.state,
        )


def sync_run(
    run_dir: Path, target: Target, *, rewrite: bool = False, open_sink: Callable[[Target], Sink] | None = None
) -> SyncResult:
    """Sync one run to a store, and wait until the sync is complete.

    Args:
        run_dir: the run folder.
        target: the store.
        rewrite: True to delete the run in the store and write it from scratch.
        open_sink: function that opens the store, for stores that are not built in.

    Raises:
        RunFolderError: there is no journal.
        InvalidData: the journal is damaged.
        StoreUnavailable: the store does not answer.
        StoreError: the store cannot accept the run.

    Cost: if nothing is missing, a second per 10**6 updates. A database writes about 10**4 values per second, and an
    update has five or six values.
    """
    try:
        file = FileIO(run_dir / JOURNAL_NAME)
    except OSError as error:
        raise RunFolderError(
            f"There is no journal to copy in {str(run_dir)!r}: {error.strerror or error}.",
            fix="Pass the run folder that was given as --run-dir.",
        ) from error
    with file, journal_lock(file) as acquired:
        if not acquired:
            return SyncResult(outcome="busy", state="", lines=0)
        alive = is_training(run_dir)
        with closing((open_sink or open_target)(target)) as sink:
            sync = JournalSync(file, run_dir.resolve().name, sink, rewrite=rewrite)
            sync.sync_new_lines()
            state = sync.finish(alive=alive)
        if not state:
            return SyncResult(outcome="empty", state="", lines=0)
        outcome = "rewritten" if sync.rewritten else "copied" if sync.lines else "complete"
        return SyncResult(outcome=outcome, state=state, lines=sync.lines)


def open_target(target: Target) -> Sink:
    """Open a store.

    Raises:
        StoreUnavailable: the store does not answer.
        StoreError: the store cannot accept runs.
    """
    match target.kind:
        case "mlflow":
            from trueloop.runs.tracking.mlflow_sink import MlflowSink

            return MlflowSink(target)
        case "tensorboard":
            from trueloop.runs.tracking.tensorboard_sink import TensorBoardSink

            return TensorBoardSink(target)
        case "wandb":
            from trueloop.runs.tracking.wandb_sink import WandbSink

            return WandbSink(target)


def _make_batch(items: list[Item]) -> StoreBatch:
    return StoreBatch(
        points=[item for item in items if isinstance(item, MetricPoint)],
        checkpoints=[item for item in items if isinstance(item, SavedCheckpoint)],
        notes=[item for item in items if isinstance(item, RunNote)],
    )
