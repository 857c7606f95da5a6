"""Copies one journal into one store: what is missing there, each thing once, and nothing that counts no longer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Literal

from trueloop.core.errors import RunFolderError
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.queries.running import held as in_training
from trueloop.runs.tracking.journal_file import journal_lock, checksum_before, complete_lines
from trueloop.runs.tracking.journal_index import JournalIndex, damaged_line_error, parse_line
from trueloop.runs.tracking.run_metadata import make_run_metadata
from trueloop.runs.tracking.sink import StoreBatch, RunMetadata, SyncCursor, MetricPoint, RunNote, SavedCheckpoint, Sink
from trueloop.runs.tracking.target import Target
from trueloop.runs.tracking.translation import Item, Translator

MAX_SLICE_BYTES = 64 * 1024  # about 1,000 updates: a second's work for a database


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """What became of one run."""

    outcome: Literal["whole", "copied", "rewritten", "busy", "empty"]
    """It was there already; what was missing was added; it was written anew; another process copies it now; no run
    had started."""
    state: str
    """How the run ended: as the journal says, else "running", "killed" or "unknown"; "" where it was not looked at."""
    lines: int
    """Lines of the journal that were handed over."""


class JournalSync:
    """One journal on its way into one store.

    Args:
        file: the journal, unbuffered; its lock is held by the caller.
        folder: the run folder's name.
        sink: the store; closed by the caller.
        rewrite: write everything anew, whatever is there.

    Raises:
        StoreError: from the store; after it, begin with a new object: what is there is then found again.
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
        """Copy what the journal holds by now.

        Args:
            upto: bytes; None = as far as it goes.
        """
        self._index.extend(upto)
        if self._index.newest_start is None:
            return
        card = self._run_metadata()
        if self._run is None:
            self._find_cursor(card, upto)
        elif self._index.stale or card.fingerprint != self._run.fingerprint:
            self._start_over(card)
        elif card != self._run and self._is_open:
            self._sink.open_run(card)
        self._run = card
        while self._offset < self._index.size:
            self._write_slice()
        self._index.mark_synced()

    def finish(self, *, alive: bool | None) -> str:
        """Say how the run ended, where the store does not know, and return it; "" where no run had started.

        Args:
            alive: whether a process still trains; None where that cannot be told.
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

    def _run_metadata(self) -> RunMetadata:
        survey = self._index
        assert survey.newest_start is not None
        return make_run_metadata(
            survey.newest_start, folder=self._folder, started_s=survey.started_s, first_line=survey.first_line
        )  # fmt: skip

    def _find_cursor(self, card: RunMetadata, upto: int | None) -> None:
        """Go on where the store says, or begin with nothing."""
        self._run = card
        mark = None if self._rewrite else self._sink.find_cursor(card)
        if mark is None or not self._can_resume(mark, card):
            self._start_over(card)
            return
        place = mark.journal_bytes
        survey = JournalIndex(self._file, synced_bytes=place, stored_bytes=place if mark.state else None)
        survey.extend(upto)
        if survey.stale:
            self._start_over(card)
            return
        self._index, self._cursor, self._offset = survey, mark, place
        self._translator = Translator(survey, mark.translator_state)

    def _can_resume(self, mark: SyncCursor, card: RunMetadata) -> bool:
        if mark.fingerprint != card.fingerprint or (not mark.state and not self._sink.is_idempotent):
            return False
        return mark.journal_bytes == 0 or (mark.checksum != "" and checksum_before(self._file, mark.journal_bytes) == mark.checksum)

    def _start_over(self, card: RunMetadata) -> None:
        """Remove what the store has of this run and write it anew."""
        self.rewritten = self._sink.delete_run(card) or self.rewritten
        self._is_open = False
        self._run, self._cursor, self._offset = card, None, 0
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
        for place, line in complete_lines(self._file, start, min(self._index.size, start + MAX_SLICE_BYTES)):
            try:
                items += self._translator.translate(place, parse_line(line, self._file.name))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise damaged_line_error(self._file.name, place, error) from error
            self._offset = place + len(line)
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
    """Copy what is missing of one run, and wait for it.

    Args:
        run_dir: the run's folder.
        target: the store.
        rewrite: write everything anew.
        open_sink: for another store.

    Raises:
        RunFolderError: there is no journal.
        InvalidData: the journal is damaged.
        StoreDown: the store does not answer.
        StoreError: it will not take the run.

    Cost: where nothing is missing, a second per 10**6 updates. A database takes some 10**4 values a second, five or six
    for each update.
    """
    try:
        file = FileIO(run_dir / JOURNAL_NAME)
    except OSError as error:
        raise RunFolderError(
            f"There is no journal to copy in {str(run_dir)!r}: {error.strerror or error}.",
            fix="Name the folder a run was written to, as --run-dir had it.",
        ) from error
    with file, journal_lock(file) as mine:
        if not mine:
            return SyncResult(outcome="busy", state="", lines=0)
        alive = in_training(run_dir)
        with closing((open_sink or open_target)(target)) as sink:
            copying = JournalSync(file, run_dir.resolve().name, sink, rewrite=rewrite)
            copying.sync_new_lines()
            state = copying.finish(alive=alive)
        if not state:
            return SyncResult(outcome="empty", state="", lines=0)
        outcome = "rewritten" if copying.rewritten else "copied" if copying.lines else "whole"
        return SyncResult(outcome=outcome, state=state, lines=copying.lines)


def open_target(target: Target) -> Sink:
    """Open a store.

    Raises:
        StoreDown: it does not answer.
        StoreError: it will not take runs.
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
