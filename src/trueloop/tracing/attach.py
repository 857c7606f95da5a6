"""Attaches all hooks to PyTorch, and removes them again.

Full tracing emits every event and costs about 0.2 ms per update. Sampled tracing emits the events that are rare or
nearly free, interrupted by bursts of full tracing: see `sampling`.
"""

import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import ClassVar, Protocol

from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches, hide_package
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.sampling import SamplingController
from trueloop.tracing.stream import EventStream, Listener


class Hook(Protocol):
    """Traces one part of PyTorch, by replaced functions or PyTorch's own hooks."""

    emits: ClassVar[tuple[type[Event], ...]]
    """Events that are missing or incomplete if the hook cannot be installed."""

    def install_always(self, patches: Patches) -> None:
        """Install the replacements that are needed as long as some listener is subscribed; by default none."""

    def install_full_tracing(self, patches: Patches) -> None:
        """Install the replacements that only full tracing needs; called each time full tracing starts."""


class Attachment:
    """Keeps all hooks installed in PyTorch as long as some listener is subscribed; there is one per process.

    Args:
        make_hooks: creates all hooks from the event stream and the program state that they share.
    """

    def __init__(self, make_hooks: Callable[[EventStream, ProgramState], Sequence[Hook]]) -> None:
        self.stream, self.program = EventStream(), ProgramState()
        self._hooks = make_hooks(self.stream, self.program)
        self._always, self._full_tracing = Patches(), Patches()
        self._listeners: list[Listener] = []
        self._process = os.getpid()
        self.unavailable_events: dict[type[Event], str] = {}
        """Event type that cannot be traced with this version of PyTorch -> the reason, in words."""
        self.sampling = SamplingController(
            self.stream, start_full_tracing=self._start_full_tracing, stop_full_tracing=self._stop_full_tracing
        )
        self.stream.request_full_tracing = self.sampling.request_full_tracing
        self.stream.after_batch = self.sampling.after_batch
        self.stream.after_backward = self.sampling.after_backward
        self.stream.after_update = self.sampling.after_update

    def attach(self, listener: Listener) -> None:
        """Deliver all events to another listener; the first listener installs the hooks."""
        with self.stream.lock:
            if self._process != os.getpid():
                self._after_fork_in_child()
            self.stream.subscribe(listener)
            self._listeners.append(listener)
            try:
                if len(self._listeners) == 1:
                    self._install()
                self.sampling.start()
            except BaseException:  # after Ctrl-C the caller does not know that it is attached
                self.detach(listener)
                raise

    def detach(self, listener: Listener) -> None:
        """Stop delivering events to a listener; the last listener removes all hooks."""
        with self.stream.lock:
            if listener not in self._listeners:  # attached in the parent, before this process was forked
                return
            self.stream.unsubscribe(listener)
            self._listeners.remove(listener)
            if not self._listeners:
                try:
                    self._uninstall()
                except BaseException:  # Ctrl-C before all hooks were removed
                    self._uninstall()
                    raise

    def _install(self) -> None:
        hide_package("trueloop")
        self.stream.active = True
        self.stream.reset()
        self.program.reset()
        self.sampling.reset()
        self.unavailable_events = {}
        for hook in self._hooks:
            self._install_hook(hook, hook.install_always, self._always)

    def _uninstall(self) -> None:
        self.sampling.stop()
        self.stream.active = False
        self._full_tracing.restore()  # in case Ctrl-C came while full tracing stopped
        self._always.restore()

    def _after_fork_in_child(self) -> None:
        """Remove all hooks in a forked child, since its listeners were attached in the parent."""
        self._process = os.getpid()
        self._listeners.clear()
        self._uninstall()

    def _start_full_tracing(self) -> None:
        start_s = perf_counter()
        with self.stream.lock:
            if self._listeners:  # another thread may just have detached the last one
                for hook in self._hooks:
                    self._install_hook(hook, hook.install_full_tracing, self._full_tracing)
        self.stream.overhead_s += perf_counter() - start_s

    def _stop_full_tracing(self) -> None:
        start_s = perf_counter()
        with self.stream.lock:
            self._full_tracing.restore()
        self.stream.overhead_s += perf_counter() - start_s

    def _install_hook(self, hook: Hook, install: Callable[[Patches], None], patches: Patches) -> None:
        """Install a hook; if this version of PyTorch lacks something it needs, record its events as unavailable."""
        try:
            install(patches)
        except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
            if self.unavailable_events.keys().isdisjoint(hook.emits):
                self.stream.record_problem("a hook cannot be installed with this version of PyTorch", error)
            reason = f"its events cannot be traced with this version of PyTorch: {error}"
            self.unavailable_events.update(dict.fromkeys(hook.emits, reason))
