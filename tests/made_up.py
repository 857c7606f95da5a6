"""A made-up catalogue and a made-up source, so that the doors are tested apart from what is found behind them.

``optimizer.zero_grad()`` is an error here (GRD901), ``model.zero_grad()`` a warning (MEM901), ``model.half()`` a note
(MDL901), and an exception that leaves the program a warning (ENV901).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trueloop.core.findings import Evidence, Severity
from trueloop.failures.failure import BaseDetector, Failure
from trueloop.failures.load import Entry
from trueloop.tracing.events import ErrorRaised, Event, TracingGap
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location


class Hook:
    """Tells three calls apart by a `Gap` of 1, 2 or 3 updates."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    def install_always(self, patches: Patches) -> None:
        import torch

        patches.replace(torch.optim.Optimizer, "zero_grad", self._telling(1))
        patches.replace(torch.nn.Module, "zero_grad", self._telling(2))
        patches.replace(torch.nn.Module, "half", self._telling(3))

    def install_full_tracing(self, patches: Patches) -> None:
        """Nothing more."""

    def _telling(self, kind: int) -> Callable[[Any], Callable[..., Any]]:
        stream = self._stream

        def make(original: Any) -> Callable[..., Any]:
            tell = stream.isolated("calls", lambda: stream.emit(TracingGap(location=user_location(), updates=kind)))

            def call(*args: Any, **options: Any) -> Any:
                if stream.active:
                    tell()
                return original(*args, **options)

            return call

        return make


def sources(stream: EventStream, program: ProgramState) -> Sequence[Hook]:
    return [Hook(stream)]


def entries() -> list[Entry]:
    made = [
        ("GRD901", "gradient", "made-up-error", Severity.ERROR, _on_gap(1)),
        ("MEM901", "memory", "made-up-warning", Severity.WARNING, _on_gap(2)),
        ("MDL901", "model", "made-up-note", Severity.NOTE, _on_gap(3)),
        ("ENV901", "environment", "made-up-exception", Severity.WARNING, _OnError),
    ]
    return [
        Entry(
            Failure(
                code=code, title=f"A {slug}", severity=severity, doc=DOC, bad="bad = 1\n", good="good = 1\n",
                fix="Do otherwise.", detector=detector,
            ),
            family,
            slug,
        )
        for code, family, slug, severity, detector in made
    ]  # fmt: skip


DOC = """Something made up happens.

What you see
    None: it is made up.
Why it happens
    Nothing is wrong, as
    in two lines.
Fix
    Do otherwise.
When this is fine
    Always.
How it is detected
    By calls of a made-up function.
References
    None.
"""


def _on_gap(kind: int) -> Callable[[], Any]:
    class OnGap(BaseDetector):
        subscribes_to: tuple[type[Event], ...] = (TracingGap,)

        def observe(self, event: TracingGap) -> Evidence | None:
            if event.updates != kind:
                return None
            return Evidence(message=f"call of kind {kind}", location=event.location)

    return OnGap


class _OnError(BaseDetector):
    subscribes_to: tuple[type[Event], ...] = (ErrorRaised,)

    def observe(self, event: ErrorRaised) -> Evidence | None:
        return Evidence(message=f"it is a {type(event.error).__name__}", location=event.location)
