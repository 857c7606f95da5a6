"""Decides when to trace in full: at the start, after changes of structure, and in bursts that grow rarer.

All of it counts updates, never seconds: the same program gives the same findings on any machine, however busy. Only a
program that full tracing slows down far beyond what was ever measured is traced less, by the clock.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Final

from trueloop.tracing.events import TracingGap
from trueloop.tracing.stream import EventStream

INITIAL_UPDATES: Final = 512  # traced in full at the start
BURST_UPDATES: Final = 8  # traced in full now and then, and after a change: the first ends a window not seen whole
BURST_INTERVAL: Final = 128  # updates from one burst to the next, until the run is SPARSER_AFTER updates long
SPARSER_AFTER: Final = 512  # updates; from here on the interval doubles whenever the length of the run does
CHANGE_INTERVAL_SHARE: Final = 4  # bursts after changes of structure may be so many times as frequent
MAX_BATCHES: Final = 64  # traced in full without a single backward, as in a validation pass
MAX_BACKWARDS: Final = 1024  # traced in full without an update, as in a program that changes its weights by hand
CHECK_INTERVAL: Final = 8  # updates between two periodic checks during INITIAL_UPDATES
LATE_CHECK_INTERVAL: Final = 64  # updates, from then on
EMERGENCY_S: Final = 60.0  # seconds of overhead that are always allowed
EMERGENCY_SHARE: Final = 0.5  # of the program's time that the overhead may take beyond that
TOO_SLOW: Final = (
    "Tracing this program takes unusually long, so later updates were traced less: they may hide failures."
)


def burst_interval(update: int) -> int:
    """Return the updates from the start of one burst to the start of the next."""
    return BURST_INTERVAL << max(0, (update // SPARSER_AFTER).bit_length() - 1)


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
        self._start_s = self._overhead_at_start_s = 0.0
        self.reset()

    def reset(self) -> None:
        """Restart all counts, before the first listener subscribes."""
        self._last_full_update = self._next_check = self._next_burst = self._next_change = self._stopped_at = 0
        self._batches = self._backwards = self._backwards_when_stopped = 0
        self._full = False
        self.updates_traced = 0
        """Number of fully traced updates."""

    def start(self) -> None:
        """Trace the first updates in full."""
        self._start_s, self._overhead_at_start_s = perf_counter(), self._stream.overhead_s
        self._start_full(INITIAL_UPDATES)

    def stop(self) -> None:
        """End full tracing."""
        if self._full:
            self._stop_full()

    def request_full_tracing(self) -> None:
        """Trace the next few updates in full after a change of structure, unless many came just before."""
        update = self._stream.update
        if update >= self._next_change:
            self._next_change = update + burst_interval(update) // CHANGE_INTERVAL_SHARE
            self._start_full(BURST_UPDATES)

    def after_update(self) -> None:
        """Count a fully traced update, run due checks, and begin or end a burst; see `EventStream.after_update`."""
        stream, update = self._stream, self._stream.update
        if update >= self._next_check:
            self._next_check = update + (CHECK_INTERVAL if update < INITIAL_UPDATES else LATE_CHECK_INTERVAL)
            for check in stream.periodic_checks:
                check()
            if self._full and self._is_emergency():
                self._last_full_update = update
        if self._full:
            self.updates_traced += 1
            self._batches = self._backwards = 0
            if update >= self._last_full_update:
                self._stop_full()
        elif update >= self._next_burst:
            self._start_full(BURST_UPDATES)
        stream.next_check_update = update + 1 if self._full else min(self._next_check, self._next_burst)

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
        if self._is_emergency():
            self._next_burst = stream.update + burst_interval(stream.update)
            return
        self._last_full_update = max(self._last_full_update, stream.update + updates)
        self._batches = self._backwards = 0
        if not self._full:
            self._full = stream.full_tracing = True
            stream.next_check_update = 0
            self._start_hooks()
            if stream.update > self._stopped_at or stream.backward_count > self._backwards_when_stopped:
                stream.emit(TracingGap(updates=stream.update - self._stopped_at))

    def _stop_full(self) -> None:
        stream = self._stream
        self._full = stream.full_tracing = False
        self._stop_hooks()
        self._stopped_at = update = stream.update
        self._backwards_when_stopped = stream.backward_count
        pause = update >= self._last_full_update  # otherwise a long validation pass ended it: go on at the next update
        self._next_burst = update + (burst_interval(update) - BURST_UPDATES if pause else 1)

    def _is_emergency(self) -> bool:
        """Return True, and say so in the report, if tracing slows the program down far more than was ever measured."""
        spent_s = self._stream.overhead_s - self._overhead_at_start_s
        emergency = spent_s > EMERGENCY_S + EMERGENCY_SHARE * (perf_counter() - self._start_s)
        if emergency and TOO_SLOW not in self._stream.problems:
            self._stream.problems.append(TOO_SLOW)
        return emergency
