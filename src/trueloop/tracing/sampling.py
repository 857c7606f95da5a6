"""How much is watched when: in full at first and after changes, lightly otherwise, with a burst now and then.

Systematic mistakes show at once, so most is learned in the first windows. What comes later (a leak, a drift) shows in
bursts, which are as rare as it takes to keep the cost below a share of the program's own time.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from trueloop.tracing.events import TracingGap
from trueloop.tracing.stream import EventStream

FIRST: Final = 16  # updates in full at the start
BURST: Final = 6  # updates in full now and then: two rounds of three optimizers
FREE: Final = 64  # updates in full that nobody counts: those at the start, and what changes in the first epochs
FREE_S: Final = 0.05  # seconds that nobody minds either
MOST_BATCHES: Final = 64  # in full without a single backward, as in a validation sweep
MOST_BACKWARDS: Final = 1024  # in full without a single update, as in a program that changes its weights by hand
LOOK: Final = 8  # updates between two looks at what grows, and at whether a burst is due
SELDOM: Final = 64  # of them, at most, where they are fast and the run is no longer young
YOUNG: Final = 256  # updates
SOON_S: Final = 0.1  # seconds between two looks that are enough for whoever follows the run
SHARE: Final = 0.001  # of the program's time that bursts may take from then on
HIDDEN: Final = 1.5  # times what is timed: the program's own code runs slower beside ours


class SamplingController:
    """Opens and closes the full view.

    Args:
        stream: told what is wanted, by its ``full_tracing``.
        open_full: put in place what only the full view needs.
        close_full: take it away.
    """

    def __init__(self, stream: EventStream, *, start_full_tracing: Callable[[], None], stop_full_tracing: Callable[[], None]) -> None:
        self._stream, self._open, self._close = stream, start_full_tracing, stop_full_tracing
        self._opened = False
        self._last_update = self._look_at = 0
        self._pause, self._looked_s = LOOK, 0.0
        self._batches = self._backwards = 0
        self._next_burst = 0
        self._closed_at = 0
        self._began_s = 0.0
        self._opened_busy_s = self._spent_s = 0.0
        self.watched = 0
        """Updates watched in full."""

    def begin(self) -> None:
        """Count from nothing: nobody has listened until now."""
        self._last_update = self._look_at = self._next_burst = self._closed_at = self.watched = 0
        self._opened = False

    def start(self) -> None:
        """Watch in full from now on, for the first windows."""
        self._began_s, self._spent_s = perf_counter(), 0.0
        self._opened_busy_s = self._stream.overhead_s
        self._see_in_full(FIRST)

    def stop(self) -> None:
        """Take everything away."""
        if self._opened:
            self._shut()

    def wake(self) -> None:
        """Watch the next few updates in full, where that can be afforded: something has changed its structure."""
        if self._affordable():
            self._see_in_full(BURST)

    def after_update(self) -> None:
        """Called after steps of optimizers, with the update counted: see `EventStream.after_update`."""
        stream, update = self._stream, self._stream.update
        if update >= self._look_at:
            self._look(update)
        if self._opened:
            self.watched += 1
            self._batches = self._backwards = 0
            if update >= self._last_update:
                self._shut()
        elif update >= self._next_burst:
            if self._affordable():
                self._see_in_full(BURST)
            else:
                self._next_burst = update + 4 * BURST
        stream.next_check_update = update + 1 if self._opened else self._look_at

    def _look(self, update: int) -> None:
        now_s = perf_counter()
        fast = update > YOUNG and now_s - self._looked_s < SOON_S
        self._pause, self._looked_s = min(2 * self._pause, SELDOM) if fast else LOOK, now_s
        self._look_at = update + self._pause
        for look in self._stream.periodic_checks:
            look()

    def after_backward(self) -> None:
        """Called for every backward while watching in full."""
        self._batches = 0
        self._backwards += 1
        if self._opened and self._backwards >= MOST_BACKWARDS:
            self._shut()

    def after_batch(self) -> None:
        """Called for every batch drawn while watching in full."""
        self._batches += 1
        if self._opened and self._batches >= MOST_BATCHES and self._stream.update:
            self._shut()

    def _see_in_full(self, updates: int) -> None:
        stream = self._stream
        self._last_update = max(self._last_update, stream.update + updates)
        self._batches = self._backwards = 0
        if not self._opened:
            self._opened = stream.full_tracing = True
            stream.next_check_update = 0
            self._opened_busy_s = stream.overhead_s
            self._open()
            if stream.update > self._closed_at:
                stream.emit(TracingGap(updates=stream.update - self._closed_at))

    def _shut(self) -> None:
        stream = self._stream
        self._opened = stream.full_tracing = False
        self._close()
        self._spent_s += stream.overhead_s - self._opened_busy_s
        self._closed_at = stream.update
        self._next_burst = stream.update + 4 * BURST

    def _affordable(self) -> bool:
        """True while watching in full has cost no more than its share of the program's time, or next to nothing."""
        if self.watched < FREE:
            return True
        spent_s = self._spent_s + (self._stream.overhead_s - self._opened_busy_s if self._opened else 0.0)
        return HIDDEN * spent_s < FREE_S + SHARE * (perf_counter() - self._began_s)
