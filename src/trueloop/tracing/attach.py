"""Attaching to torch: all sources at once, reversibly, in two degrees of detail.

In full, every event is told: about 0.2 ms per update. Lightly, only what is rare or nearly free is: see `sampling`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import ClassVar, Protocol

from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches, hide_package
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.sampling import SamplingController
from trueloop.tracing.stream import Listener, EventStream


class Hook(Protocol):
    """Sees one kind of thing, by replacing functions of torch or by torch's own hooks."""

    emits: ClassVar[tuple[type[Event], ...]]
    """The events that are missing, or lack something, where it cannot be put in place."""

    def install_always(self, patches: Patches) -> None:
        """Put in place what is needed as long as somebody listens."""
        ...

    def install_full_tracing(self, patches: Patches) -> None:
        """Put in place what is needed while watching in full only; may be called again and again."""
        ...


class Attachment:
    """torch with our replacements in it, as long as somebody listens; there is one in a process.

    Args:
        make_sources: given the stream and the shared facts, all sources.
    """

    def __init__(self, make_hooks: Callable[[EventStream, ProgramState], Sequence[Hook]]) -> None:
        self.stream, self.program = EventStream(), ProgramState()
        self._sources = make_hooks(self.stream, self.program)
        self._always, self._in_full = Patches(), Patches()
        self._listeners: list[Listener] = []
        self._process = os.getpid()
        self.unavailable_events: dict[type[Event], str] = {}
        """Events that this version of torch gives no means to see, and why, in words."""
        self.sampling = SamplingController(self.stream, start_full_tracing=self._open, stop_full_tracing=self._close)
        self.stream.request_full_tracing = self.sampling.request_full_tracing
        self.stream.after_batch = self.sampling.after_batch
        self.stream.after_backward = self.sampling.after_backward
        self.stream.after_update = self.sampling.after_update

    def attach(self, listener: Listener) -> None:
        """Carry all events to one more listener from now on; the first one puts the replacements in place."""
        with self.stream.lock:
            if self._process != os.getpid():
                self._left_behind()
            self.stream.subscribe(listener)
            self._listeners.append(listener)
            try:
                if len(self._listeners) == 1:
                    self._begin()
                self.sampling.start()
            except BaseException:  # Ctrl-C: who asked for this has nothing to end it by
                self.detach(listener)
                raise

    def detach(self, listener: Listener) -> None:
        """Stop doing so; with the last listener torch becomes as it was."""
        with self.stream.lock:
            if listener not in self._listeners:  # it began in the process that this one was forked from
                return
            self.stream.unsubscribe(listener)
            self._listeners.remove(listener)
            if not self._listeners:
                try:
                    self._end()
                except BaseException:  # Ctrl-C, at the worst moment
                    self._end()
                    raise

    def _begin(self) -> None:
        hide_package("trueloop")
        self.stream.active = True
        self.stream.reset()
        self.program.reset()
        self.sampling.reset()
        self.unavailable_events = {}
        for source in self._sources:
            self._put(source, source.install_always, self._always)

    def _end(self) -> None:
        self.sampling.stop()
        self.stream.active = False
        self._in_full.restore()  # where Ctrl-C came while the full view was closed
        self._always.restore()

    def _left_behind(self) -> None:
        """Begin anew in a forked child: nobody listens here yet."""
        self._process = os.getpid()
        self._listeners.clear()
        self._end()

    def _open(self) -> None:
        start_s = perf_counter()
        with self.stream.lock:
            if self._listeners:  # the last one may have left on another thread just now
                for source in self._sources:
                    self._put(source, source.install_full_tracing, self._in_full)
        self.stream.overhead_s += perf_counter() - start_s

    def _close(self) -> None:
        start_s = perf_counter()
        with self.stream.lock:
            self._in_full.restore()
        self.stream.overhead_s += perf_counter() - start_s

    def _put(self, source: Hook, place: Callable[[Patches], None], patches: Patches) -> None:
        """Put a source in place; one that misses something of torch's is told of, and the others see what they see."""
        try:
            place(patches)
        except Exception as error:  # noqa: BLE001 - the host is sacred: the program runs as it does without us
            if self.unavailable_events.keys().isdisjoint(source.emits):
                self.stream.record_problem("this version of torch lacks what some things are seen by", error)
            why = f"this version of torch lacks what it is seen by: {error}"
            self.unavailable_events.update(dict.fromkeys(source.emits, why))
