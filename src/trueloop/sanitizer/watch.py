"""Watches a part of a program's run: attaches the hooks, runs the detectors, makes the report."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from time import perf_counter
from types import TracebackType
from typing import Final, Protocol

from torch import nn

from trueloop.core.findings import (
    CodePosition,
    ExplainedError,
    Finding,
    Report,
    SourceLocation,
    UpdateTiming,
)
from trueloop.failures.load import failure_hooks
from trueloop.failures.pytorch_error import KnownError
from trueloop.sanitizer.dispatch import DetectorDispatcher, WatchedFailure
from trueloop.sanitizer.pytorch_errors.explain import Context, explain
from trueloop.sanitizer.pytorch_errors.recent_calls import RecentCalls
from trueloop.sanitizer.recorder import Recorder
from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import ErrorRaised, Event, WatchEnded
from trueloop.tracing.hooks import all_hooks
from trueloop.tracing.stream import describe_error
from trueloop.tracing.trackers.learning_progress import LearningProgress
from trueloop.tracing.user_location import is_user_code

BATCHED_EVENTS: Final = 128  # events that are recorded together, which is several times faster than one by one


@cache
def _attachment() -> Attachment:
    """Return the one attachment of this process; nested watches receive the same events."""
    return Attachment(
        lambda stream, program: [*all_hooks(stream, program), *(make(stream, program) for make in failure_hooks())]
    )


class RunObserver(Protocol):
    """Gets the numbers of a run while it is in progress, within the program's own calls, so it must be quick."""

    def add_value(self, series: str, update: int, value: float) -> None:
        """Add the latest value of one of the report's series."""
        ...

    def write_if_due(self, status: RunStatus) -> None:
        """Write the status if enough time has passed since the last call; called at events and every few updates."""
        ...


class RunStatus(Protocol):
    """The progress of a traced run."""

    @property
    def updates(self) -> int:
        """Number of optimizer steps since the watch started."""
        ...

    def timing(self) -> UpdateTiming | None:
        """Return the time of an update and its parts so far. Cost: up to 0.1 ms."""
        ...

    def newest_layer_norms(self) -> tuple[int, list[str], list[float | None]] | None:
        """Return the latest update whose norms by layer were read, the names of the layers, and their norms."""
        ...


class Watch:
    """Watches a program from ``start`` to ``stop``, or as a context manager.

    Args:
        catalogue: the failures to watch for.
        on_finding: called with each new finding.
        is_suppressed: returns whether a comment or a setting suppresses a code at a line.
        errors: name of a PyTorch error that can be explained -> its catalogue entry.
        observer: gets the numbers of the run while it is in progress.
    """

    def __init__(
        self,
        catalogue: Iterable[WatchedFailure],
        *,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        is_suppressed: Callable[[str, SourceLocation | None], bool] = lambda code, location: False,
        errors: Mapping[str, KnownError] | None = None,
        observer: RunObserver | None = None,
    ) -> None:
        self._attachment = _attachment()
        self._problems: list[str] = []
        self._dispatcher = DetectorDispatcher(
            catalogue, on_finding=on_finding, is_suppressed=is_suppressed, on_problem=self._record_problem
        )
        self._progress = self._dispatcher.tracker(LearningProgress)
        self._observer = observer
        recorder = Recorder(self._add_value)
        self._recorder: Recorder | None = recorder
        self._record_handlers = recorder.handlers
        self._periodic_check = self._attachment.stream.isolated("the latest numbers", self._update_observer)
        self._errors, self._recent = errors or {}, RecentCalls()
        self._recent_handlers = self._recent.handlers
        self._pending: list[Event] = []
        self._deferred_types = frozenset((*self._record_handlers, *self._recent_handlers))
        self._explained_error: ExplainedError | None = None
        self._baseline = (0, 0, 0.0, 0.0)
        self._final_report: Report | None = None

    def start(self) -> None:
        """Start watching."""
        stream, sampling = self._attachment.stream, self._attachment.sampling
        start_s = perf_counter()
        self._final_report = None
        self._attachment.attach(self._on_event)
        if self._observer is not None:
            stream.periodic_checks.append(self._periodic_check)
        self._baseline = (stream.update, sampling.updates_traced, stream.overhead_s, start_s)

    def stop(self) -> Report:
        """Stop watching, and restore PyTorch unless another watch is active."""
        stream = self._attachment.stream
        try:
            for finish in stream.on_detach:
                finish()
        finally:  # also after Ctrl-C while digests of other ranks are awaited
            if self._periodic_check in stream.periodic_checks:
                stream.periodic_checks.remove(self._periodic_check)
            self._attachment.detach(self._on_event)
        self._dispatcher.dispatch(
            WatchEnded(update=stream.update, backward_count=stream.backward_count, time_s=perf_counter())
        )
        self._final_report = self._report()
        return self._final_report

    def report(self) -> Report:
        """Return the report of the run until now, or until the watch was stopped."""
        return self._final_report or self._report()

    def name_parameters(self, model: nn.Module) -> None:
        """Name the parameters of a model before its first call."""
        registry = self._attachment.stream.registry
        registry.ref(model)  # so that it gets a lower number than models of its class that are called earlier
        registry.name_parameters(model)

    @property
    def updates(self) -> int:
        """Number of optimizer steps since the watch started."""
        return self._attachment.stream.update - self._baseline[0]

    def timing(self) -> UpdateTiming | None:
        """Return the time of an update and its parts so far; None before the second update."""
        self._process_pending()
        return self._recorder.timing() if self._recorder else None

    def newest_layer_norms(self) -> tuple[int, list[str], list[float | None]] | None:
        """Return the latest update whose norms by layer were read, the names of the layers, and their norms."""
        self._process_pending()
        return self._recorder.layer_norms.newest() if self._recorder else None

    @contextmanager
    def paused(self) -> Generator[None]:
        """Trace nothing within a ``with`` block, whose operations are not part of the program."""
        stream = self._attachment.stream
        was_active, stream.active = stream.active, False
        try:
            yield
        finally:
            stream.active = was_active

    def report_error(self, error: BaseException) -> None:
        """Report an exception that left the program to the detectors, and explain it if PyTorch raised it."""
        self._explain(error)
        stream, trace, location = self._attachment.stream, error.__traceback__, None
        while trace is not None:
            if is_user_code(trace.tb_frame.f_code):
                location = CodePosition(trace.tb_frame.f_code, trace.tb_lasti)
            trace = trace.tb_next
        self._dispatcher.dispatch(
            ErrorRaised(
                update=stream.update,
                backward_count=stream.backward_count,
                time_s=perf_counter(),
                location=location,
                error=error,
            )
        )

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _report(self) -> Report:
        self._process_pending()
        stream, sampling = self._attachment.stream, self._attachment.sampling
        update, traced, overhead_s, start_s = self._baseline
        series, held_out = self._recorder.series() if self._recorder else {}, self._progress.held_out
        layer_norms = self._recorder.layer_gradient_norms() if self._recorder else None
        return Report(
            findings=self._dispatcher.findings(),
            verdicts=tuple(self._dispatcher.verdicts(self._attachment.unavailable_events)),
            suppressed=self._dispatcher.suppressed_count,
            updates=stream.update - update,
            updates_traced=sampling.updates_traced - traced,
            seconds=perf_counter() - start_s,
            overhead_s=stream.overhead_s - overhead_s,
            timing=self._recorder.timing() if self._recorder else None,
            series={**series, "held_out_loss": held_out} if held_out.values else series,
            layer_gradient_norms=layer_norms,
            layers=self._progress.layers(layer_norms),
            learning=self._progress.summary,
            error=self._explained_error,
            problems=(*self._problems, *stream.problems),
        )

    def _on_event(self, event: Event) -> None:
        if type(event) in self._deferred_types:
            self._pending.append(event)
            if len(self._pending) >= BATCHED_EVENTS or self._observer is not None:
                self._process_pending()
        self._dispatcher.dispatch(event)
        if self._observer is not None:
            self._update_observer()

    def _process_pending(self) -> None:
        """Record the pending events."""
        with self._attachment.stream.lock:
            pending, self._pending = self._pending, []
            for event in pending:
                self._record(event)
                remember = self._recent_handlers.get(type(event))
                if remember is not None:
                    remember(event)

    def _record(self, event: Event) -> None:
        handler = self._record_handlers.get(type(event))
        if handler is not None:
            try:
                handler(event)
            except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
                self._recorder, self._record_handlers = None, {}
                self._record_problem("the numbers of the run are no longer recorded", error)

    def _add_value(self, series: str, update: int, value: float) -> None:
        if self._observer is not None:
            try:
                self._observer.add_value(series, update, value)
            except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
                self._drop_observer(error)

    def _update_observer(self) -> None:
        if self._observer is not None:
            try:
                self._observer.write_if_due(self)
            except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
                self._drop_observer(error)

    def _drop_observer(self, error: Exception) -> None:
        self._observer = None
        self._record_problem("the display of the run is no longer updated", error)

    def _explain(self, error: BaseException) -> None:
        self._process_pending()
        found = frozenset(finding.code for finding in self._dispatcher.findings())
        stream, program = self._attachment.stream, self._attachment.program
        recent = self._recent if stream.full_tracing else RecentCalls()  # calls before a gap in tracing are not recent
        try:
            models = [model for model, _ in program.models.items() if stream.registry.ref(model) in self._recent.models]
            self._explained_error = explain(error, self._errors, Context(models, recent, stream.update, found))
        except Exception as fault:  # noqa: BLE001 - an internal error must never reach the program
            self._record_problem("the error could not be explained", fault)

    def _record_problem(self, what: str, error: BaseException) -> None:
        self._problems.append(f"{what}: {describe_error(error)}")
