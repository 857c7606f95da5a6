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
from trueloop.runs.tracking.journal_file import checksum_before, complete_lines, journal_lock
from trueloop.runs.tracking.journal_index import JournalIndex, damaged_line_error, parse_line
from trueloop.runs.tracking.run_metadata import make_run_metadata
from trueloop.runs.tracking.sink import MetricPoint, RunMetadata, RunNote, SavedCheckpoint, Sink, StoreBatch, SyncCursor
from trueloop.runs.tracking.target import Target
from trueloop.runs.tracking.translation import Item, Translation

SLICE_BYTES = 64 * 1024  # about 1,000 updates: a second's work for a database


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What became of one run."""

    outcome: Literal["whole", "copied", "rewritten", "busy", "empty"]
    """It was there already; what was missing was added; it was written anew; another process copies it now; no run
    had started."""
    state: str
    """How the run ended: as the journal says, else "running", "killed" or "unknown"; "" where it was not looked at."""
    lines: int
    """Lines of the journal that were handed over."""


class Copying:
    """One journal on its way into one store.

    Args:
        file: the journal, unbuffered; its lock is held by the caller.
        folder: the run folder's name.
        sink: the store; closed by the caller.
        again: write everything anew, whatever is there.

    Raises:
        StoreError: from the store; after it, begin with a new object: what is there is then found again.
        InvalidData: the journal is damaged.
    """

    def __init__(self, file: FileIO, folder: str, sink: Sink, *, again: bool = False) -> None:
        self.lines = 0
        self.rewritten = False
        self._file, self._folder, self._sink = file, folder, sink
        self._again = again
        self._survey = JournalIndex(file)
        self._card: RunMetadata | None = None
        self._mark: SyncCursor | None = None
        self._at = 0
        self._begun = False
        self._translation = Translation(self._survey, {})

    def advance(self, upto: int | None = None) -> None:
        """Copy what the journal holds by now.

        Args:
            upto: bytes; None = as far as it goes.
        """
        self._survey.extend(upto)
        if self._survey.newest_start is None:
            return
        card = self._read_card()
        if self._card is None:
            self._open(card, upto)
        elif self._survey.stale or card.fingerprint != self._card.fingerprint:
            self._start_over(card)
        elif card != self._card and self._begun:
            self._sink.open_run(card)
        self._card = card
        while self._at < self._survey.size:
            self._write_slice()
        self._survey.mark_synced()

    def finish(self, *, alive: bool | None) -> str:
        """Say how the run ended, where the store does not know, and return it; "" where no run had started.

        Args:
            alive: whether a process still trains; None where that cannot be told.
        """
        if self._card is None or self._survey.newest_start is None:
            return ""
        state = self._survey.end or {True: "running", False: "killed", None: "unknown"}[alive]
        if self._mark and self._mark.state == state:
            return state
        self._begin()
        self._mark = self._here(state)
        self._sink.finish_run(state, self._translation.time_ms, self._mark)
        return state

    def _read_card(self) -> RunMetadata:
        survey = self._survey
        assert survey.newest_start is not None
        return make_run_metadata(
            survey.newest_start, folder=self._folder, started_s=survey.started_s, first_line=survey.first_line
        )  # fmt: skip

    def _open(self, card: RunMetadata, upto: int | None) -> None:
        """Go on where the store says, or begin with nothing."""
        self._card = card
        mark = None if self._again else self._sink.find_cursor(card)
        if mark is None or not self._fits(mark, card):
            self._start_over(card)
            return
        place = mark.journal_bytes
        survey = JournalIndex(self._file, synced_bytes=place, stored_bytes=place if mark.state else None)
        survey.extend(upto)
        if survey.stale:
            self._start_over(card)
            return
        self._survey, self._mark, self._at = survey, mark, place
        self._translation = Translation(survey, mark.translator_state)

    def _fits(self, mark: SyncCursor, card: RunMetadata) -> bool:
        if mark.fingerprint != card.fingerprint or (not mark.state and not self._sink.is_idempotent):
            return False
        return mark.journal_bytes == 0 or (mark.checksum != "" and checksum_before(self._file, mark.journal_bytes) == mark.checksum)

    def _start_over(self, card: RunMetadata) -> None:
        """Remove what the store has of this run and write it anew."""
        self.rewritten = self._sink.erase(card) or self.rewritten
        self._begun = False
        self._card, self._mark, self._at = card, None, 0
        self._translation = Translation(self._survey, {})
        self._begin()

    def _begin(self) -> None:
        """Open the run in the store for writing."""
        if self._begun:
            return
        assert self._card is not None
        if self._mark and not self._sink.can_append:
            self._start_over(self._card)
            while self._at < self._survey.size:
                self._write_slice()
            return
        self._begun = True
        self._sink.open_run(self._card)
        self._mark = self._here("")
        self._sink.write(StoreBatch(), self._mark)

    def _write_slice(self) -> None:
        self._begin()
        items: list[Item] = []
        start = self._at
        for place, line in complete_lines(self._file, start, min(self._survey.size, start + SLICE_BYTES)):
            try:
                items += self._translation.read(place, parse_line(line, self._file.name))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise damaged_line_error(self._file.name, place, error) from error
            self._at = place + len(line)
            self.lines += 1
        if self._at == start:
            return
        self._mark = self._here("")
        self._sink.write(_batch(items), self._mark)

    def _here(self, state: str) -> SyncCursor:
        assert self._card is not None
        return SyncCursor(
            journal_bytes=self._at,
            checksum=checksum_before(self._file, self._at),
            fingerprint=self._card.fingerprint,
            state=state,
            translator_state=self._translation.memory,
        )


def copy_run(
    run_dir: Path, target: Target, *, again: bool = False, open_sink: Callable[[Target], Sink] | None = None
) -> Copied:
    """Copy what is missing of one run, and wait for it.

    Args:
        run_dir: the run's folder.
        target: the store.
        again: write everything anew.
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
            return Copied(outcome="busy", state="", lines=0)
        alive = in_training(run_dir)
        with closing((open_sink or open_target)(target)) as sink:
            copying = Copying(file, run_dir.resolve().name, sink, again=again)
            copying.advance()
            state = copying.finish(alive=alive)
        if not state:
            return Copied(outcome="empty", state="", lines=0)
        outcome = "rewritten" if copying.rewritten else "copied" if copying.lines else "whole"
        return Copied(outcome=outcome, state=state, lines=copying.lines)


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


def _batch(items: list[Item]) -> StoreBatch:
    return StoreBatch(
        points=[item for item in items if isinstance(item, MetricPoint)],
        checkpoints=[item for item in items if isinstance(item, SavedCheckpoint)],
        notes=[item for item in items if isinstance(item, RunNote)],
    )
