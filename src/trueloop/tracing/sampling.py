"""Decides when to trace in full: at the start, after changes, and in short bursts now and then.

Systematic mistakes show in the first windows. What comes later (a leak, a drift) shows in bursts, which are as rare as
it takes to keep the overhead below a share of the program's own time.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Final

from trueloop.tracing.events import TracingGap
from trueloop.tracing.stream import EventStream

INITIAL_UPDATES: Final = 16  # traced in full at the start
BURST_UPDATES: Final = 6  # traced in full now and then: two rounds of three optimizers
UNBUDGETED_UPDATES: Final = 64  # traced in full whatever they cost: the start, and what changes in the first epochs
UNBUDGETED_S: Final = 0.05  # seconds of overhead that are always allowed
MAX_BATCHES: Final = 64  # traced in full without a single backward, as in a validation pass
MAX_BACKWARDS: Final = 1024  # traced in full without an update, as in a program that changes its weights by hand
CHECK_INTERVAL: Final = 8  # updates between two periodic checks, each of which may also begin a burst
MAX_CHECK_INTERVAL: Final = 64  # updates, where they are fast and the run is past EARLY_UPDATES
EARLY_UPDATES: Final = 256
CHECK_INTERVAL_S: Final = 0.1  # seconds between two checks that are often enough for an observer of the run
OVERHEAD_SHARE: Final = 0.001  # of the program's time that bursts may take after the unbudgeted updates
UNTIMED_FACTOR: Final = 1.5  # real overhead per timed overhead: the program's own code runs slower next to hooks


class SamplingController:
    """Starts and stops full tracing.

    Args:
        stream: its ``full_tracing`` is set accordingly.
        start_full_tracing: installs what only full tracing needs.
        stop_full_tracing: removes it.
    """

    def __init__(
        self, stream: EventStream, *, start_full_tracing: Callable[[], None], stop_full_tracing: Callable[[], None]
    ) -> None:
        self._stream, self._start_hooks, self._stop_hooks = stream, start_full_tracing, stop_full_tracing
        self._full = False
        self._last_full_update = self._next_check = 0
        self._interval, self._checked_s = CHECK_INTERVAL, 0.0
        self._batches = self._backwards = 0
        self._next_burst = 0
        self._stopped_at = 0
        self._start_s = 0.0
        self._overhead_at_start_s = self._spent_s = 0.0
        self.updates_traced = 0
        """Number of fully traced updates."""

    def reset(self) -> None:
        """Restart all counts, before the first listener subscribes."""
        self._last_full_update = self._next_check = self._next_burst = self._stopped_at = self.updates_traced = 0
        self._full = False

    def start(self) -> None:
        """Trace the first windows in full."""
        self._start_s, self._spent_s = perf_counter(), 0.0
        self._overhead_at_start_s = self._stream.overhead_s
        self._start_full(INITIAL_UPDATES)

    def stop(self) -> None:
        """End full tracing."""
        if self._full:
            self._stop_full()

    def request_full_tracing(self) -> None:
        """Trace the next few updates in full after a change of structure, if the overhead allows it."""
        if self._within_budget():
            self._start_full(BURST_UPDATES)

    def after_update(self) -> None:
        """Count a fully traced update, run due checks, and begin or end a burst; see `EventStream.after_update`."""
        stream, update = self._stream, self._stream.update
        if update >= self._next_check:
            self._check(update)
        if self._full:
            self.updates_traced += 1
            self._batches = self._backwards = 0
            if update >= self._last_full_update:
                self._stop_full()
        elif update >= self._next_burst:
            if self._within_budget():
                self._start_full(BURST_UPDATES)
            else:
                self._next_burst = update + 4 * BURST_UPDATES
        stream.next_check_update = update + 1 if self._full else self._next_check

    def _check(self, update: int) -> None:
        now_s = perf_counter()
        fast = update > EARLY_UPDATES and now_s - self._checked_s < CHECK_INTERVAL_S
        self._interval = min(2 * self._interval, MAX_CHECK_INTERVAL) if fast else CHECK_INTERVAL
        self._checked_s = now_s
        self._next_check = update + self._interval
        for check in self._stream.periodic_checks:
            check()

    def after_backward(self) -> None:
        """End full tracing after too many backwards without an update; called for every fully traced backward."""
        self._batches = 0
        self._backwards += 1
        if self._full and self._backwards >= MAX_BACKWARDS:
            self._stop_full()

    def after_batch(self) -> None:
        """End full tracing after too many batches without a backward; called for every fully traced batch."""
        self._batches += 1
        if self._full and self._batches >= MAX_BATCHES and self._stream.update:
            self._stop_full()

    def _start_full(self, updates: int) -> None:
        stream = self._stream
        self._last_full_update = max(self._last_full_update, stream.update + updates)
        self._batches = self._backwards = 0
        if not self._full:
            self._full = stream.full_tracing = True
            stream.next_check_update = 0
            self._overhead_at_start_s = stream.overhead_s
            self._start_hooks()
            if stream.update > self._stopped_at:
                stream.emit(TracingGap(updates=stream.update - self._stopped_at))

    def _stop_full(self) -> None:
        stream = self._stream
        self._full = stream.full_tracing = False
        self._stop_hooks()
        self._spent_s += stream.overhead_s - self._overhead_at_start_s
        self._stopped_at = stream.update
        self._next_burst = stream.update + 4 * BURST_UPDATES

    def _within_budget(self) -> bool:
        """Return True while full tracing has taken no more than its share of the program's time, or next to none."""
        if self.updates_traced < UNBUDGETED_UPDATES:
            return True
        spent_s = self._spent_s + (self._stream.overhead_s - self._overhead_at_start_s if self._full else 0.0)
        return UNTIMED_FACTOR * spent_s < UNBUDGETED_S + OVERHEAD_SHARE * (perf_counter() - self._start_s)
