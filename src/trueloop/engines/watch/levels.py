"""How much is watched when: in full at first and after changes, lightly otherwise, with a burst now and then.

Systematic mistakes show at once, so most is learned in the first windows. What comes later (a leak, a drift) shows in
bursts, which are as rare as it takes to keep the cost below a share of the program's own time.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from trueloop.engines.watch.stream import Stream
from trueloop.ground.events import Gap

FIRST: Final = 16  # updates in full at the start
BURST: Final = 6  # updates in full now and then: two rounds of three optimizers
MOST_BATCHES: Final = 64  # in full without a single update, as in a validation sweep
SHARE: Final = 0.005  # of the program's time that bursts may take
DEAREST: Final = 256e-6  # seconds that watching one update in full costs, where it was not measured yet


class Levels:
    """Opens and closes the full view.

    Args:
        stream: told what is wanted, by its ``full``.
        open_full: put in place what only the full view needs.
        close_full: take it away.
    """

    def __init__(self, stream: Stream, *, open_full: Callable[[], None], close_full: Callable[[], None]) -> None:
        self._stream, self._open, self._close = stream, open_full, close_full
        self._opened = False
        self._last_update = 0
        self._batches = 0
        self._next_burst = 0
        self._closed_at = 0
        self._began_s = 0.0
        self._began_update = 0
        self.watched = 0
        """Updates watched in full."""

    def begin(self) -> None:
        """Count from nothing: nobody has listened until now."""
        self._last_update = self._next_burst = self._closed_at = self.watched = 0

    def start(self) -> None:
        """Watch in full from now on, for the first windows."""
        self._began_s, self._began_update = perf_counter(), self._stream.update
        self._see_in_full(FIRST)

    def stop(self) -> None:
        """Take everything away."""
        if self._opened:
            self._shut()

    def wake(self) -> None:
        """Watch the next few updates in full: something has changed its structure."""
        self._see_in_full(BURST)

    def after_update(self) -> None:
        """Called after every step of an optimizer, with the update counted."""
        update = self._stream.update
        if self._opened:
            self.watched += 1
            if update >= self._last_update:
                self._shut()
        elif update >= self._next_burst:
            self._see_in_full(BURST)

    def after_batch(self) -> None:
        """Called for every batch drawn."""
        self._batches += 1
        if self._opened and self._batches >= MOST_BATCHES and self._stream.update:
            self._shut()

    def _see_in_full(self, updates: int) -> None:
        stream = self._stream
        self._last_update = max(self._last_update, stream.update + updates)
        self._batches = 0
        if not self._opened:
            self._opened = stream.full = True
            self._open()
            if stream.update > self._closed_at:
                stream.emit(Gap, updates=stream.update - self._closed_at)

    def _shut(self) -> None:
        stream = self._stream
        self._opened = stream.full = False
        self._close()
        self._closed_at = stream.update
        self._next_burst = stream.update + self._pause()

    def _pause(self) -> int:
        """Updates until the next burst, so that bursts stay below their share of the time."""
        elapsed = perf_counter() - self._began_s
        update_s = elapsed / max(1, self._stream.update - self._began_update)
        cost_s = max(self._stream.busy_s / max(1, self.watched), DEAREST)
        return max(4 * BURST, int(BURST * cost_s / (SHARE * update_s)))
