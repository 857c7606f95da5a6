"""Keeps a board's queue moving from a thread of its own: judges whenever it is our turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from trueloop.core.errors import TrueloopError
from trueloop.lab.arena.judge_client import Referee
from trueloop.lab.arena.judging import judge_waiting
from trueloop.lab.arena.leaderboard import ATTEMPTS, Board, Row

LOOK_S: Final = 0.1
"""Between two looks at the board."""


class Clerk:
    """Works from `wake` until nothing waits, then rests until it is woken again.

    Args:
        board: whose queue.
        referee: runs the entries.
        until: judge no further than this entry.
    """

    def __init__(self, board: Board, referee: Referee, *, until: int | None = None) -> None:
        self._board, self._referee, self._until = board, referee, until
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.trouble: TrueloopError | None = None
        """What went wrong last, if anything did."""

    def wake(self) -> None:
        """Make sure that somebody works on the queue; cheap where somebody does."""
        with self._lock:
            if self._closed.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop judging; what was begun stays in the queue. The referee is ended with it."""
        self._closed.set()
        self._referee.close()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def __enter__(self) -> Clerk:
        self.wake()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        failures = 0
        while failures < ATTEMPTS and not self._closed.is_set():
            try:
                if judge_waiting(self._board, self._referee, until=self._until):
                    return
                self._closed.wait(LOOK_S)
                if not self._board.waiting():
                    return
            except TrueloopError as error:
                self.trouble = error
                failures += 1


def see_through(board: Board, entry: int, told: Callable[[Row, int], None]) -> Row:
    """Wait until an entry is judged, by us or by another process.

    Where we are interrupted before its judging has begun, it is taken back; afterwards it stays, and is judged with the
    next one.

    Args:
        board: where it waits.
        entry: its number.
        told: hears the entry and how many are ahead of it, again and again.

    Raises:
        TrueloopError: it cannot be judged here.
    """
    try:
        with Clerk(board, Referee(), until=entry) as clerk:
            while (row := board.entry(entry)).open:
                told(row, board.ahead(entry))
                clerk.wake()
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        board.withdraw(entry)
        raise
    if clerk.trouble is not None and row.why.startswith("The judging was ended"):
        raise clerk.trouble
    return row
