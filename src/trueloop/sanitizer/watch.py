"""One watched stretch of a program: attach, judge, report."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from time import perf_counter
from types import TracebackType
from typing import Final, Protocol

from torch import nn

from trueloop.core.findings import CodePosition, ExplainedError, Finding, Report, SourceLocation, UpdateTiming
from trueloop.failures.pytorch_error import KnownError
from trueloop.sanitizer.dispatch import DetectorDispatcher, WatchedFailure
from trueloop.sanitizer.pytorch_errors.explain import Context, explain
from trueloop.sanitizer.pytorch_errors.recent_calls import RecentCalls
from trueloop.sanitizer.recorder import Recorder
from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import ErrorRaised, Event, WatchEnded
from trueloop.tracing.hooks import all_hooks
from trueloop.tracing.stream import describe_error
from trueloop.tracing.user_location import is_user_code

TOGETHER: Final = 128  # events that wait for those who need not hear of them at once


@cache
def _attachment() -> Attachment:
    """There is one torch in a process, so there is one attachment; nested watches listen to the same events."""
    return Attachment(all_hooks)


class RunObserver(Protocol):
    """Follows a run while it goes on. It is called within the program's own calls, so it must be quick."""

    def add_value(self, series: str, update: int, value: float) -> None:
        """Take in the newest value of one of the report's series."""
        ...

    def write_if_due(self, now: RunStatus) -> None:
        """Do whatever is due; called at every event, and every few updates."""
        ...


class RunStatus(Protocol):
    """Where a watched run is."""

    @property
    def updates(self) -> int:
        """Steps of optimizers since the watch began."""
        ...

    def timing(self) -> UpdateTiming | None:
        """Return where the time of an update goes, so far. Cost: up to 0.1 ms."""
        ...

    def newest_layer_norms(self) -> tuple[int, list[str], list[float | None]] | None:
        """Return the newest update whose norms by layer were read, the layers, and their norms."""
        ...


class Watch:
    """Watches from ``start`` to ``stop``, or as a context manager.

    Args:
        catalogue: the failures to watch for.
        on_finding: called with each finding as soon as it is certain.
        is_suppressed: whether the program asks not to hear of a code at a line.
        errors: the errors of torch's that can be explained, by their kind.
        observer: who follows the run while it goes on.
    """

    def __init__(
        self,
        catalogue: Iterable[WatchedFailure],
        *,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        is_suppressed: Callable[[str, SourceLocation | None], bool] = lambda code, site: False,
        errors: Mapping[str, KnownError] | None = None,
        observer: RunObserver | None = None,
    ) -> None:
        self._attachment = _attachment()
        self._problems: list[str] = []
        self._judge = DetectorDispatcher(catalogue, on_finding=on_finding, is_suppressed=is_suppressed, on_problem=self._trouble)
        self._audience = observer
        recorder = Recorder(self._told)
        self._recorder: Recorder | None = recorder
        self._take = recorder.take
        self._look = self._attachment.stream.isolated("the newest numbers", self._show)
        self._errors, self._recent = errors or {}, RecentCalls()
        self._note = self._recent.take
        self._waiting: list[Event] = []
        self._wanted_later = frozenset((*self._take, *self._note))
        self._explained: ExplainedError | None = None
        self._began = (0, 0, 0.0, 0.0)
        self._final: Report | None = None

    def start(self) -> None:
        """Begin to watch."""
        stream, sampling = self._attachment.stream, self._attachment.sampling
        start_s = perf_counter()
        self._final = None
        self._attachment.attach(self._hear)
        if self._audience is not None:
            stream.periodic_checks.append(self._look)
        self._began = (stream.update, sampling.updates_traced, stream.overhead_s, start_s)

    def stop(self) -> Report:
        """End watching; torch becomes as it was, unless another watch goes on."""
        stream = self._attachment.stream
        try:
            for farewell in stream.on_detach:
                farewell()
        finally:  # Ctrl-C, while answers of other ranks are waited for
            if self._look in stream.periodic_checks:
                stream.periodic_checks.remove(self._look)
            self._attachment.detach(self._hear)
        self._judge.dispatch(WatchEnded(update=stream.update, backward_count=stream.backward_count, time_s=perf_counter()))
        self._final = self._report()
        return self._final

    def report(self) -> Report:
        """Return what is known by now, or was when it stopped."""
        return self._final or self._report()

    def name_parameters(self, model: nn.Module) -> None:
        """Call the parameters of a model by their names in it from now on, not only once it was called."""
        registry = self._attachment.stream.registry
        registry.ref(model)  # which numbers it before others of its class that are called earlier
        registry.name_parameters(model)

    @property
    def updates(self) -> int:
        """Steps of optimizers since it began."""
        return self._attachment.stream.update - self._began[0]

    def timing(self) -> UpdateTiming | None:
        """Return where the time of an update goes, so far; None before the second one."""
        self._catch_up()
        return self._recorder.timing() if self._recorder else None

    def newest_layer_norms(self) -> tuple[int, list[str], list[float | None]] | None:
        """Return the newest update whose norms by layer were read, the layers, and their norms."""
        self._catch_up()
        return self._recorder.by_layer.newest() if self._recorder else None

    @contextmanager
    def paused(self) -> Generator[None]:
        """Hear nothing of what is done in here: it is not the program that does it."""
        stream = self._attachment.stream
        on, stream.active = stream.active, False
        try:
            yield
        finally:
            stream.active = on

    def report_error(self, error: BaseException) -> None:
        """Let the detectors hear of an exception that left the program, and explain it where it is torch's."""
        self._explain(error)
        stream, trace, place = self._attachment.stream, error.__traceback__, None
        while trace is not None:
            if is_user_code(trace.tb_frame.f_code):
                place = CodePosition(trace.tb_frame.f_code, trace.tb_lasti)
            trace = trace.tb_next
        self._judge.dispatch(
            ErrorRaised(update=stream.update, backward_count=stream.backward_count, time_s=perf_counter(), location=place, error=error)
        )

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _report(self) -> Report:
        self._catch_up()
        stream, sampling = self._attachment.stream, self._attachment.sampling
        update, watched, overhead_s, began_s = self._began
        return Report(
            findings=self._judge.findings(),
            verdicts=tuple(self._judge.verdicts(self._attachment.unavailable_events)),
            suppressed=self._judge.suppressed_count,
            updates=stream.update - update,
            updates_traced=sampling.updates_traced - watched,
            seconds=perf_counter() - began_s,
            overhead_s=stream.overhead_s - overhead_s,
            timing=self._recorder.timing() if self._recorder else None,
            series=self._recorder.series() if self._recorder else {},
            layer_gradient_norms=self._recorder.layer_gradient_norms() if self._recorder else None,
            error=self._explained,
            problems=(*self._problems, *stream.problems),
        )

    def _hear(self, event: Event) -> None:
        if type(event) in self._wanted_later:
            self._waiting.append(event)
            if len(self._waiting) >= TOGETHER or self._audience is not None:
                self._catch_up()
        self._judge.dispatch(event)
        if self._audience is not None:
            self._show()

    def _catch_up(self) -> None:
        """Let those hear of events who need not at once: of many together, which takes a fraction of the time each."""
        with self._attachment.stream.lock:
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                self._record(event)
                note = self._note.get(type(event))
                if note is not None:
                    note(event)

    def _record(self, event: Event) -> None:
        take = self._take.get(type(event))
        if take is not None:
            try:
                take(event)
            except Exception as error:  # noqa: BLE001 - the host is sacred, and all others are to hear of it
                self._recorder, self._take = None, {}
                self._trouble("no numbers of the run are kept", error)

    def _told(self, series: str, update: int, value: float) -> None:
        if self._audience is not None:
            try:
                self._audience.add_value(series, update, value)
            except Exception as error:  # noqa: BLE001 - the host is sacred, and so are the report's numbers
                self._leave(error)

    def _show(self) -> None:
        if self._audience is not None:
            try:
                self._audience.write_if_due(self)
            except Exception as error:  # noqa: BLE001 - the host is sacred
                self._leave(error)

    def _leave(self, error: Exception) -> None:
        self._audience = None
        self._trouble("nobody can follow the run any more", error)

    def _explain(self, error: BaseException) -> None:
        self._catch_up()
        found = frozenset(finding.code for finding in self._judge.findings())
        stream, program = self._attachment.stream, self._attachment.program
        recent = self._recent if stream.full_tracing else RecentCalls()  # between full views nothing is recent
        try:
            models = [model for model, _ in program.models.items() if stream.registry.ref(model) in self._recent.models]
            self._explained = explain(error, self._errors, Context(models, recent, stream.update, found))
        except Exception as fault:  # noqa: BLE001 - the host is sacred: its own traceback is all it needs
            self._trouble("the error is not explained", fault)

    def _trouble(self, what: str, error: BaseException) -> None:
        self._problems.append(f"{what}: {describe_error(error)}")
