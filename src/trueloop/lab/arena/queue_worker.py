"""Keeps a board's queue moving from a thread of its own: judges whenever it is our turn."""

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
"""Between two looks at the board."""


class QueueWorker:
    """Works from `ensure_running` until nothing waits, then rests until it is woken again.

    Args:
        board: whose queue.
        judge: runs the entries.
        until: judge no further than this entry.
    """

    def __init__(self, board: Leaderboard, judge: JudgeClient, *, until: int | None = None) -> None:
        self._board, self._judge, self._until = board, judge, until
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.error: TrueloopError | None = None
        """What went wrong last, if anything did."""

    def ensure_running(self) -> None:
        """Make sure that somebody works on the queue; cheap where somebody does."""
        with self._lock:
            if self._closed.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop judging; what was begun stays in the queue. The referee is ended with it."""
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
        failures = 0
        while failures < MAX_ATTEMPTS and not self._closed.is_set():
            try:
                if judge_waiting(self._board, self._judge, until=self._until):
                    return
                self._closed.wait(POLL_INTERVAL_S)
                if not self._board.count_waiting():
                    return
            except TrueloopError as error:
                self.error = error
                failures += 1


def wait_until_judged(board: Leaderboard, entry: int, on_progress: Callable[[Row, int], None]) -> Row:
    """Wait until an entry is judged, by us or by another process.

    Where we are interrupted before its judging has begun, it is taken back; afterwards it stays, and is judged with the
    next one.

    Args:
        board: where it waits.
        entry: its number.
        on_progress: hears the entry and how many are ahead of it, again and again.

    Raises:
        TrueloopError: it cannot be judged here.
    """
    try:
        with QueueWorker(board, JudgeClient(), until=entry) as clerk:
            while (row := board.entry(entry)).is_open:
                on_progress(row, board.count_ahead(entry))
                clerk.ensure_running()
                time.sleep(POLL_INTERVAL_S)
    except KeyboardInterrupt:
        board.withdraw(entry)
        raise
    if clerk.error is not None and row.why.startswith("The judging was ended"):
        raise clerk.error
    return row
