"""Judge the entries of a leaderboard's queue in a background thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from trueloop.core.errors import TrueloopError
from trueloop.lab.arena.judge_client import JudgeClient
from trueloop.lab.arena.judging import judge_waiting
from trueloop.lab.arena.leaderboard import MAX_ATTEMPTS, Leaderboard, Row

POLL_INTERVAL_S: Final = 0.1
"""Seconds between two reads of the leaderboard."""


class QueueWorker:
    """Judges entries from a call of `ensure_running` until the queue is empty, then stops until the next call.

    Args:
        board: the leaderboard with the queue.
        judge: client of the process that runs the entries.
        until: number of the entry after which to stop; None = stop when the queue is empty.
    """

    def __init__(self, board: Leaderboard, judge: JudgeClient, *, until: int | None = None) -> None:
        self._board, self._judge, self._until = board, judge, until
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.error: TrueloopError | None = None
        """The last error, if there was one."""

    def ensure_running(self) -> None:
        """Start the thread unless it is running."""
        with self._lock:
            if self._closed.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop judging and close the judge; an unfinished entry stays in the queue."""
        self._closed.set()
        self._judge.close()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def __enter__(self) -> QueueWorker:
        self.ensure_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        failure_count = 0
        while failure_count < MAX_ATTEMPTS and not self._closed.is_set():
            try:
                if judge_waiting(self._board, self._judge, until=self._until):
                    return
                self._closed.wait(POLL_INTERVAL_S)
                if not self._board.count_waiting():
                    return
            except TrueloopError as error:
                self.error = error
                failure_count += 1


def wait_until_judged(board: Leaderboard, entry: int, on_progress: Callable[[Row, int], None]) -> Row:
    """Wait until an entry is judged, by this or another process.

    On KeyboardInterrupt an entry that is still queued is withdrawn; one being judged stays and is judged later.

    Args:
        board: the leaderboard with the queue.
        entry: number of the entry.
        on_progress: function that repeatedly receives the entry and the number of entries ahead of it.

    Raises:
        TrueloopError: the entry cannot be judged on this system.
    """
    try:
        with QueueWorker(board, JudgeClient(), until=entry) as worker:
            while (row := board.entry(entry)).is_open:
                on_progress(row, board.count_ahead(entry))
                worker.ensure_running()
                time.sleep(POLL_INTERVAL_S)
    except KeyboardInterrupt:
        board.withdraw(entry)
        raise
    if worker.error is not None and row.why.startswith("The judging was ended"):
        raise worker.error
    return row
