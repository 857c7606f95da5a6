"""Run practice and replays in the background and submit entries, for the arena page.

Background runs are kept in bounded memory; entries are stored on the leaderboard only.
"""

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

MAX_RUNNING: Final = 8  # largest number of practice runs and replays at the same time, of all pages together
MAX_STORED: Final = 64  # largest number of practice runs and replays whose results are kept


@dataclass(slots=True, kw_only=True)
class BackgroundRun:
    """State of a practice run or a replay; written by its thread, read by requests."""

    id: int
    curve: list[Point] = field(default_factory=list[Point])
    trial: Trial | None = None
    seeds: list[SeedReplay] = field(default_factory=list[SeedReplay])
    replay: Replay | None = None
    error: TrueloopError | None = None
    done: bool = False
    job_id: int | None = None
    """Id of the job at the judge; None until it has started."""
    stop_requested: bool = False
    """True once the page has asked to stop this run."""


class SubmissionQueue:
    """The practice runs, replays and submissions of one server.

    Args:
        path: file of the leaderboard; None = the user's default.
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
        """The leaderboard, opened on first use.

        Raises:
            BoardError: the leaderboard cannot be opened.
        """
        with self._lock:
            if self._leaderboard is None:
                self._leaderboard = Leaderboard(self._path or default_leaderboard_path())
                self._worker = QueueWorker(self._leaderboard, self._judge)
            return self._leaderboard

    def submit(self, track: Track, entry: Entry, name: str) -> int:
        """Queue an entry, start judging, and return its number.

        Raises:
            BoardError, InvalidConfig, MissingExtra: the entry cannot be submitted.
        """
        check_installed(track)
        number = submit_entry(self.leaderboard, track, entry, name)
        self.ensure_judging()
        return number

    def ensure_judging(self) -> None:
        """Start judging if entries are waiting."""
        if self.leaderboard.count_waiting() and self._worker is not None:
            self._worker.ensure_running()

    def start_practice(self, track: Track, entry: Entry, seed: int) -> int:
        """Start a practice run and return its id.

        Raises:
            BoardError, MissingExtra: the run cannot be started.
        """
        check_installed(track)
        job = Job(id=0, track=track.name, entry=entry, seed=seed, practice=True, without_timing=True)

        def run(active: BackgroundRun) -> None:
            def on_start(number: int) -> None:
                active.job_id = number
                if active.stop_requested:
                    self._judge.stop(number)

            active.trial = self._judge.run(job, active.curve.extend, on_start=on_start)

        return self._start(run)

    def start_replay(self, entry: int) -> int:
        """Start a replay of an entry and return its id.

        Raises:
            BoardError: the entry does not exist, or the replay cannot be started.
        """
        row = self.leaderboard.entry(entry)

        def run(active: BackgroundRun) -> None:
            active.replay = replay_entry(row, self._judge, active.seeds.append)
            active.replay.record(self.leaderboard, entry)

        return self._start(run)

    def find_run(self, number: int) -> BackgroundRun:
        """Return a background run.

        Raises:
            BoardError: the run does not exist or was removed.
        """
        run = self._runs.get(number)
        if run is None:
            raise BoardError("This run is no longer known.", fix="Start it again.")
        return run

    def stop(self, number: int) -> None:
        """Stop a practice run if it exists."""
        run = self._runs.get(number)
        if run is None:
            return
        run.stop_requested = True
        if not run.done and run.job_id is not None:
            self._judge.stop(run.job_id)

    def close(self) -> None:
        """End all runs and the judge."""
        if self._worker is not None:
            self._worker.close()
        self._judge.close()

    def _start(self, run: Callable[[BackgroundRun], Any]) -> int:
        with self._lock:
            if sum(not each.done for each in self._runs.values()) >= MAX_RUNNING:
                raise BoardError(f"{MAX_RUNNING} runs are active already.", fix="Try again when one has ended.")
            active = BackgroundRun(id=secrets.randbelow(1 << 40))  # cannot be guessed by other pages
            self._runs[active.id] = active
            done_ids = [each.id for each in self._runs.values() if each.done]
            for old_id in done_ids[: max(0, len(self._runs) - MAX_STORED)]:
                del self._runs[old_id]
        threading.Thread(target=self._run, args=(active, run), daemon=True).start()
        return active.id

    def _run(self, active: BackgroundRun, run: Callable[[BackgroundRun], Any]) -> None:
        try:
            run(active)
        except TrueloopError as error:
            active.error = error
        except Exception as error:  # noqa: BLE001 - reported to the page
            what = f"{type(error).__name__}: {error}"[:400]
            active.error = BoardError(f"This run ended with an unexpected error: {what}.", fix="Start it again.")
            traceback.print_exc()  # the page shows the message, the terminal the traceback
        finally:
            active.done = True
