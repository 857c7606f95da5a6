"""The arena's desk in the lab: practice runs and replays go on behind it, and entries are handed in at it.

What goes on is kept in memory, bounded, and forgotten with the server; entries are on the board alone.
"""

from __future__ import annotations

import secrets
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trueloop.core.errors import BoardError, TrueloopError
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judge_client import JudgeClient, check_installed
from trueloop.lab.arena.judging import Replay, SeedReplay, replay_entry, submit_entry
from trueloop.lab.arena.leaderboard import Leaderboard, default_leaderboard_path
from trueloop.lab.arena.queue_worker import QueueWorker
from trueloop.lab.arena.tracks import Track
from trueloop.lab.arena.trial import Job, Point, Trial

MAX_RUNNING: Final = 8  # practice runs and replays that run or wait, of all who look at the page
MAX_STORED: Final = 64


@dataclass(slots=True, kw_only=True)
class BackgroundRun:
    """A practice run or a replay; written by its thread, read by whoever asks."""

    id: int
    curve: list[Point] = field(default_factory=list[Point])
    trial: Trial | None = None
    seeds: list[SeedReplay] = field(default_factory=list[SeedReplay])
    replay: Replay | None = None
    error: TrueloopError | None = None
    done: bool = False
    job_id: int | None = None
    """Under which the referee can be asked to stop it; None until it has it."""
    stop_requested: bool = False
    """It was asked to stop."""


class SubmissionQueue:
    """One for each server.

    Args:
        path: of the board; None = the user's own.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._judge = JudgeClient()
        self._runs: OrderedDict[int, BackgroundRun] = OrderedDict()
        self._leaderboard: Leaderboard | None = None
        self._worker: QueueWorker | None = None

    @property
    def leaderboard(self) -> Leaderboard:
        """The board, opened when it is asked for.

        Raises:
            BoardError: it cannot be.
        """
        with self._lock:
            if self._leaderboard is None:
                self._leaderboard = Leaderboard(self._path or default_leaderboard_path())
                self._worker = QueueWorker(self._leaderboard, self._judge)
            return self._leaderboard

    def submit(self, track: Track, entry: Entry, name: str) -> int:
        """Put an entry into the queue, and see that it is judged; return its number.

        Raises:
            BoardError, InvalidConfig, MissingExtra: it cannot be.
        """
        check_installed(track)
        number = submit_entry(self.leaderboard, track, entry, name)
        self.ensure_judging()
        return number

    def ensure_judging(self) -> None:
        """See that somebody judges, where entries wait."""
        if self.leaderboard.count_waiting() and self._worker is not None:
            self._worker.ensure_running()

    def start_practice(self, track: Track, entry: Entry, seed: int) -> int:
        """Begin a practice run; return the number to look at it with.

        Raises:
            BoardError, MissingExtra: it cannot be begun.
        """
        check_installed(track)
        job = Job(id=0, track=track.name, entry=entry, seed=seed, practice=True, once=True)

        def run(going: BackgroundRun) -> None:
            def began(number: int) -> None:
                going.job_id = number
                if going.stop_requested:
                    self._judge.stop(number)

            going.trial = self._judge.run(job, going.curve.extend, on_start=began)

        return self._start(run)

    def start_replay(self, entry: int) -> int:
        """Begin to run an entry again; return the number to look at it with.

        Raises:
            BoardError: there is no such entry, or it cannot be begun.
        """
        row = self.leaderboard.entry(entry)

        def run(going: BackgroundRun) -> None:
            going.replay = replay_entry(row, self._judge, going.seeds.append)

        return self._start(run)

    def find_run(self, number: int) -> BackgroundRun:
        """Return what goes on, or has ended, under a number.

        Raises:
            BoardError: nothing does: it was forgotten.
        """
        found = self._runs.get(number)
        if found is None:
            raise BoardError("This run is no longer known.", fix="Begin it again.")
        return found

    def stop(self, number: int) -> None:
        """End a practice run; nothing happens where there is none."""
        found = self._runs.get(number)
        if found is None:
            return
        found.stop_requested = True
        if not found.done and found.job_id is not None:
            self._judge.stop(found.job_id)

    def close(self) -> None:
        """End everything that goes on."""
        if self._worker is not None:
            self._worker.close()
        self._judge.close()

    def _start(self, run: Callable[[BackgroundRun], Any]) -> int:
        with self._lock:
            if sum(not each.done for each in self._runs.values()) >= MAX_RUNNING:
                raise BoardError(f"{MAX_RUNNING} runs go on already.", fix="Try again when one has ended.")
            going = BackgroundRun(id=secrets.randbelow(1 << 40))  # not to be guessed by who did not begin it
            self._runs[going.id] = going
            for old in [each.id for each in self._runs.values() if each.done][: max(0, len(self._runs) - MAX_STORED)]:
                del self._runs[old]
        threading.Thread(target=self._run, args=(going, run), daemon=True).start()
        return going.id

    def _run(self, going: BackgroundRun, run: Callable[[BackgroundRun], Any]) -> None:
        try:
            run(going)
        except TrueloopError as error:
            going.error = error
        except Exception as error:  # noqa: BLE001 - whoever waits hears it
            what = f"{type(error).__name__}: {error}"[:400]
            going.error = BoardError(f"This run ended in an error that nobody expected: {what}.", fix="Begin it again.")
            traceback.print_exc()  # the page says what, the server's terminal where
        finally:
            going.done = True
