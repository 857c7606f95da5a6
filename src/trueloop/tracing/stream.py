"""Counts updates and backward passes, delivers events, and isolates the program from internal errors.

An internal error never reaches the program: a hook that raises is disabled, and the report names it.
"""

import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from trueloop.tracing.events import Event
from trueloop.tracing.patch import set_compiler
from trueloop.tracing.registry import Registry
from trueloop.tracing.torch_modes import (
    dispatch_modes,
    function_modes,
    modes_active,
    recording_paused,
    torch_modes_disabled,
)

Listener = Callable[[Any], None]


def describe_error(error: BaseException) -> str:
    """Return an error's class and message; never raises, not even on a full stack or from a failing ``__str__``."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the program's own class may raise here
        return type(error).__name__


class EventStream:
    """The state that all hooks share, and the delivery of their events."""

    __slots__ = (
        "_listeners",
        "_listeners_by_type",
        "_session",
        "active",
        "after_backward",
        "after_batch",
        "after_update",
        "backward_count",
        "backward_count_at_step",
        "before_event",
        "full_tracing",
        "lock",
        "next_check_update",
        "on_detach",
        "overhead_s",
        "periodic_checks",
        "problems",
        "registry",
        "request_full_tracing",
        "same_window_since",
        "update",
        "window_size",
    )

    def __init__(self) -> None:
        self.registry = Registry()
        self.update = 0
        """Number of steps of any optimizer so far."""
        self.backward_count = 0
        """Number of backward passes so far."""
        self.backward_count_at_step = 0
        """Number of backward passes before the latest step of any optimizer."""
        self.window_size = 0
        """Number of backward passes between the latest two steps."""
        self.same_window_since = 0
        """Number of updates before ``window_size`` last changed."""
        self.full_tracing = True
        """Whether all events are emitted, or only those marked RARE."""
        self.active = False
        """Whether some listener is subscribed. Every replacement of a PyTorch function checks this first."""
        self.overhead_s = 0.0
        """Measured overhead of hooks and listeners."""
        self._session, self.problems = 0, list[str]()
        self.request_full_tracing: Callable[[], None] = lambda: None
        """Called by a hook that detects a change of structure, so that the next updates are fully traced."""
        self.after_update: Callable[[], None] = lambda: None
        """Called after a step when ``next_check_update`` is reached; sets the next one."""
        self.next_check_update = 0
        self.periodic_checks: list[Callable[[], None]] = []
        """Functions of hooks that are called every few updates."""
        self.on_detach: list[Callable[[], None]] = []
        """Functions of hooks that are called before a watch ends, to emit their last events."""
        self.after_batch: Callable[[], None] = lambda: None
        """Called for every batch that a loader returns during full tracing."""
        self.after_backward: Callable[[], None] = lambda: None
        """Called for every backward pass during full tracing."""
        self.before_event: Callable[[], None] | None = None
        """Called before anything is traced, while an update that the program writes itself may not be reported yet."""
        self._listeners: list[tuple[Listener, frozenset[type[Event]]]] = []
        self._listeners_by_type: dict[type[Event], list[Listener]] = {}
        """Event type -> its listeners, filled when a type is first emitted."""
        self.lock = threading.RLock()
        """Locked while listeners receive an event, and while replacements are installed or removed."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork_in_child)

    def reset(self) -> None:
        """Restart all counts and enable every hook again, before the first listener subscribes."""
        self.update = 0
        self.backward_count = self.backward_count_at_step = 0
        self.window_size = self.same_window_since = 0
        self._session += 1
        self.registry.reset()
        self.problems = []

    @property
    def same_window_updates(self) -> int:
        """Number of steps since the number of backward passes before each step last changed."""
        return self.update - self.same_window_since

    def subscribe(self, listener: Listener, *kinds: type[Event]) -> None:
        """Deliver all events, or only those of the given types, to one more listener."""
        with self.lock:
            self._listeners = [*self._listeners, (listener, frozenset(kinds))]
            self._listeners_by_type = {}

    def unsubscribe(self, listener: Listener) -> None:
        """Stop delivering events to a listener."""
        with self.lock:
            self._listeners = [each for each in self._listeners if each[0] != listener]
            self._listeners_by_type = {}

    def _find_listeners(self, kind: type[Event]) -> list[Listener]:
        wanted = [listener for listener, kinds in self._listeners if not kinds or kind in kinds]
        self._listeners_by_type[kind] = wanted
        return wanted

    def emit(self, event: Event) -> None:
        """Stamp an event with the current counts and time, and deliver it to its listeners."""
        if self.before_event is not None:
            self.before_event()
        event.update = self.update
        event.backward_count = self.backward_count
        event.time_s, event.overhead_s = perf_counter(), self.overhead_s
        with self.lock:
            for listener in self._listeners_by_type.get(type(event)) or self._find_listeners(type(event)):
                listener(event)
        for name in event.LIVE_FIELDS:
            setattr(event, name, None)

    def isolated(self, subject: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler that never raises: after its first error it does nothing, and the report names it.

        Args:
            subject: what the handler traces, as a plural for messages: "optimizer steps".
            handler: the function, called within the program's own call.
        """
        broken, functions, dispatches = -1, function_modes, dispatch_modes

        def run(*args: Any) -> Any:
            nonlocal broken
            if broken == self._session:
                return None
            start = perf_counter()
            compiling = set_compiler(None)
            try:
                if functions() or dispatches():
                    with torch_modes_disabled() if modes_active() else recording_paused():
                        return handler(*args)
                return handler(*args)
            except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
                broken = self._session
                self.record_problem(f"{subject} are no longer traced", error)
                return None
            finally:
                if compiling is not None:
                    set_compiler(compiling)
                self.overhead_s += perf_counter() - start

        return run

    def isolated_inner(self, subject: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler that never raises, for calls within an `isolated` handler, which does the timing."""
        broken = -1

        def run(*args: Any) -> Any:
            nonlocal broken
            if broken == self._session:
                return None
            try:
                return handler(*args)
            except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
                broken = self._session
                self.record_problem(f"{subject} are no longer traced", error)
                return None

        return run

    def record_problem(self, what: str, error: BaseException) -> None:
        """Record an internal error, with its line, for the report."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = ""
        if trace is not None:
            where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"  # noqa: PTH119
        self.problems.append(f"{what}: {describe_error(error)}{where}")

    def _after_fork_in_child(self) -> None:
        """Stop tracing in a forked child, such as a loader's worker."""
        self.active = False
        self._listeners, self._listeners_by_type = [], {}
        self.lock = threading.RLock()
