"""The stream of events: counts updates, carries events to whoever listens, and fences everything of ours.

Nothing that goes wrong in here reaches the program: a source or a listener that raises is dropped, and said to be.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from trueloop.tracing.events import Event
from trueloop.tracing.patch import set_compiler
from trueloop.tracing.registry import Registry
from trueloop.tracing.torch_modes import modes_active, dispatch_modes, function_modes, torch_modes_disabled

Listener = Callable[[Any], None]


def describe_error(error: BaseException) -> str:
    """Say an error's class and message; never raises, where the stack is full or the error cannot say itself."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - it may be a class of the program's
        return type(error).__name__


class EventStream:
    """What all sources share."""

    __slots__ = (
        "_hearing", "_listeners", "_session", "after_backward", "after_batch", "after_update", "alike_from", "busy_s",
        "due", "farewells", "full", "lock", "looks", "micro", "on", "problems", "registry", "stepped_micro", "update",
        "wake", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.registry = Registry()
        self.update = 0
        """Steps of any optimizer so far."""
        self.backward_count = 0
        """Backwards so far."""
        self.backward_count_at_step = 0
        """Backwards before the latest step of any optimizer."""
        self.window_size = 0
        """Backwards that led to it."""
        self.same_window_since = 0
        """The update from which on each one had as many."""
        self.full_tracing = True
        """Every event is wanted; otherwise the rare ones only."""
        self.active = False
        """Somebody listens. Replacements of torch's functions ask before anything else."""
        self.overhead_s = 0.0
        """Time spent in sources and listeners, as far as it is timed."""
        self.problems: list[str] = []
        self.request_full_tracing: Callable[[], None] = lambda: None
        """Called by a source that saw a change of structure: watch in full for a while."""
        self.after_update: Callable[[], None] = lambda: None
        """Called after a step of an optimizer, from update ``next_check_update`` on; it says when it is due next."""
        self.next_check_update = 0
        self.periodic_checks: list[Callable[[], None]] = []
        """Called now and then by it: sources that look at something that grows."""
        self.on_detach: list[Callable[[], None]] = []
        """Called before a watch ends: sources that still have something to tell."""
        self.after_batch: Callable[[], None] = lambda: None
        """Called for every batch drawn from a loader while watching in full."""
        self.after_backward: Callable[[], None] = lambda: None
        """Called for every backward then."""
        self._session = 0
        self._listeners: list[tuple[Listener, frozenset[type[Event]]]] = []
        self._hearing: dict[type[Event], list[Listener]] = {}
        """Who wants to hear of a kind, as far as it was asked."""
        self.lock = threading.RLock()
        """Held while somebody hears an event, and while replacements are put in place or taken away."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._left_behind)

    def reset(self) -> None:
        """Count from nothing, and trust every source again: nobody has listened until now."""
        self.update = self.backward_count = self.backward_count_at_step = self.window_size = self.same_window_since = 0
        self._session += 1
        self.registry.reset()
        self.problems = []

    @property
    def same_window_updates(self) -> int:
        """Steps in a row that as many backwards led to."""
        return self.update - self.same_window_since

    def subscribe(self, listener: Listener, *kinds: type[Event]) -> None:
        """Carry every event to one more listener, or those of some kinds only."""
        with self.lock:
            self._listeners, self._hearing = [*self._listeners, (listener, frozenset(kinds))], {}

    def unsubscribe(self, listener: Listener) -> None:
        """Stop doing so."""
        with self.lock:
            self._listeners = [each for each in self._listeners if each[0] != listener]
            self._hearing = {}

    def _hear(self, kind: type[Event]) -> list[Listener]:
        wanted = [listener for listener, kinds in self._listeners if not kinds or kind in kinds]
        self._hearing[kind] = wanted
        return wanted

    def emit(self, event: Event) -> None:
        """Say when an event happens, which is now, and carry it to everybody."""
        event.update = self.update
        event.backward_count = self.backward_count
        event.time_s, event.overhead_s = perf_counter(), self.overhead_s
        with self.lock:
            for listener in self._hearing.get(type(event)) or self._hear(type(event)):
                listener(event)
        for name in event.LIVE_FIELDS:
            setattr(event, name, None)

    def isolated(self, source: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler that never raises: the first time it would, it is silent from then on, and named.

        Args:
            source: what it sees, for people: "optimizer steps".
            handler: runs inside the program's own call.
        """
        broken, functions, dispatches = -1, function_modes, dispatch_modes

        def run(*args: Any) -> Any:
            nonlocal broken
            if broken == self._session:
                return None
            start = perf_counter()
            compiling = set_compiler(None)
            try:
                if (functions() or dispatches()) and modes_active():
                    with torch_modes_disabled():
                        return handler(*args)
                return handler(*args)
            except Exception as error:  # noqa: BLE001 - the host is sacred
                broken = self._session
                self.record_problem(f"{source} are not seen any more", error)
                return None
            finally:
                if compiling is not None:
                    set_compiler(compiling)
                self.overhead_s += perf_counter() - start

        return run

    def isolated_inner(self, source: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler as `isolated` does, for what runs within one of those: the rest is seen to there."""
        broken = -1

        def run(*args: Any) -> Any:
            nonlocal broken
            if broken == self._session:
                return None
            try:
                return handler(*args)
            except Exception as error:  # noqa: BLE001 - the host is sacred
                broken = self._session
                self.record_problem(f"{source} are not seen any more", error)
                return None

        return run

    def record_problem(self, what: str, error: BaseException) -> None:
        """Remember something that broke in here, with the place, for the report."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = ""
        if trace is not None:
            where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"  # noqa: PTH119
        self.problems.append(f"{what}: {describe_error(error)}{where}")

    def _left_behind(self) -> None:
        """In a forked child, such as a loader's worker, nothing is watched."""
        self.active = False
        self._listeners, self._hearing = [], {}
        self.lock = threading.RLock()
