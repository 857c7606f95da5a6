"""A made-up catalogue and a made-up hook: they test commands and reports independently of the real detectors.

``optimizer.zero_grad()`` is an error here (GRD901), ``model.zero_grad()`` a warning (MEM901), ``model.half()`` a note
(MDL901), and an exception that leaves the program a warning (ENV901).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trueloop.core.findings import Evidence, Severity
from trueloop.failures.failure import BaseDetector, Failure
from trueloop.failures.load import Entry
from trueloop.tracing.events import ErrorRaised, TracingGap
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location


class Hook:
    """Reports three calls as a `TracingGap` of 1, 2 or 3 updates, which identifies the call."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    def install_always(self, patches: Patches) -> None:
        import torch

        patches.replace(torch.optim.Optimizer, "zero_grad", self._reporting(1))
        patches.replace(torch.nn.Module, "zero_grad", self._reporting(2))
        patches.replace(torch.nn.Module, "half", self._reporting(3))

    def install_full_tracing(self, patches: Patches) -> None:
        """Install no hooks in addition to `install_always`."""

    def _reporting(self, call_number: int) -> Callable[[Any], Callable[..., Any]]:
        stream = self._stream

        def make(original: Any) -> Callable[..., Any]:
            def emit_gap() -> None:
                stream.emit(TracingGap(location=user_location(), updates=call_number))

            report = stream.isolated("calls", emit_gap)

            def call(*args: Any, **options: Any) -> Any:
                if stream.active:
                    report()
                return original(*args, **options)

            return call

        return make


def hooks(stream: EventStream, program: ProgramState) -> Sequence[Hook]:
    return [Hook(stream)]


def entries() -> list[Entry]:
    failures = [
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
            __name__,
        )
        for code, family, slug, severity, detector in failures
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


def _on_gap(call_number: int) -> Callable[[], Any]:
    class OnGap(BaseDetector):
        def on_tracing_gap(self, event: TracingGap) -> Evidence | None:
            if event.updates != call_number:
                return None
            return Evidence(message=f"call number {call_number}", location=event.location)

    return OnGap


class _OnError(BaseDetector):
    def on_error_raised(self, event: ErrorRaised) -> Evidence | None:
        return Evidence(message=f"the program raised {type(event.error).__name__}", location=event.location)
