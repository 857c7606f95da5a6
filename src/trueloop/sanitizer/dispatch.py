"""Dispatches events to the detectors of the catalogue, and collects their findings and verdicts."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

from trueloop.core.findings import (
    UNPROVABLE_AT_RUN_TIME,
    CodePosition,
    Evidence,
    FailureVerdict,
    Finding,
    SourceLocation,
    Verdict,
    by_importance,
)
from trueloop.failures.failure import BaseDetector, Failure
from trueloop.tracing.events import BackwardStarted, Event, StepTaken, TracingGap, handlers
from trueloop.tracing.stream import describe_error
from trueloop.tracing.tracker import Tracker, trackers

NO_UPDATE: Final = "no update was seen"
MAX_FINDINGS_PER_FAILURE: Final = 50  # findings of one code that are listed; the others are only counted


class WatchedFailure(NamedTuple):
    """A failure of the catalogue to watch for, with its slug."""

    failure: Failure
    slug: str


class RunningDetector(NamedTuple):
    """A detector of one run, with the failure that it detects."""

    watched: WatchedFailure
    detector: BaseDetector
    events: frozenset[type[Event]]
    """Events that the detector receives, or from which a tracker derives those that it receives."""
    facts: frozenset[type[Event]]
    """Further events, received by trackers whose methods the detector calls."""
    trackers: frozenset[type[Tracker]]
    """Trackers whose facts the detector uses."""


Handler = Callable[[Any], Any]
TrackerType = TypeVar("TrackerType", bound=Tracker)


class DetectorDispatcher:
    """The detectors of one run and their findings.

    Args:
        catalogue: the failures to watch for.
        on_finding: called with each new finding, within a call by the program.
        is_suppressed: returns whether a comment or a setting suppresses a code at a line.
        on_problem: called when a detector raises; only this detector is then disabled.
    """

    def __init__(
        self,
        catalogue: Iterable[WatchedFailure],
        *,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        is_suppressed: Callable[[str, SourceLocation | None], bool] = lambda code, location: False,
        on_problem: Callable[[str, BaseException], None] = lambda what, error: None,
    ) -> None:
        self._on_finding, self._is_suppressed, self._on_problem = on_finding, is_suppressed, on_problem
        self._findings: dict[Any, Finding] = {}
        self._suppressed: set[Any] = set()
        self._counts: dict[str, int] = {}
        self._overflow: dict[str, int] = {}
        self._failures = tuple(catalogue)
        self._trackers: dict[type[Tracker], Tracker] = {}
        self._running: dict[str, RunningDetector] = {}
        """Code of a failure -> its detector."""
        self._broken: dict[str, str] = {}
        """Code of a failure -> why its detector was disabled."""
        self._received_types: set[type[Event]] = set()
        self._table: dict[type[Event], tuple[list[tuple[Handler, Tracker]], list[tuple[Handler, RunningDetector]]]] = {}
        """Event type -> the methods of trackers, then those of detectors, that receive the event."""
        for watched in self._failures:
            if watched.failure.detector is not None:
                running = self._running[watched.failure.code] = self._start(watched, watched.failure.detector())
                for event_type in running.detector.activated_by:
                    self._receivers(event_type)[1].append((self._activator(running), running))
                if not running.detector.activated_by:
                    self._subscribe(running)

    def _receivers(
        self, event: type[Event]
    ) -> tuple[list[tuple[Handler, Tracker]], list[tuple[Handler, RunningDetector]]]:
        return self._table.setdefault(event, ([], []))

    def _start(self, watched: WatchedFailure, detector: BaseDetector) -> RunningDetector:
        """Give a detector its trackers, creating those that no earlier detector uses."""
        known, direct = trackers(), set(handlers(type(detector)))
        used = {kind for kind in known.values() if direct.intersection(kind.emits)}
        for kind in used:
            direct = direct.difference(kind.emits) | set(handlers(kind))
        facts: set[type[Event]] = set()
        for name, annotation in inspect.get_annotations(type(detector)).items():
            kind = known.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
            if kind is not None:
                used.add(kind)
                facts.update(handlers(kind))
                setattr(detector, name, self.tracker(kind))
        for kind in used:
            self.tracker(kind)
        running = RunningDetector(watched, detector, frozenset(direct), frozenset(facts), frozenset(used))
        detector.ignore = partial(self._unsubscribe, running)
        return running

    def tracker(self, kind: type[TrackerType]) -> TrackerType:
        """Return the run's instance of a tracker; creates it if no detector uses it."""
        tracker = self._trackers.get(kind)
        if tracker is None:
            tracker = self._trackers[kind] = kind()
            for event_type, method in handlers(kind).items():
                self._receivers(event_type)[0].append((getattr(tracker, method), tracker))
        return cast("TrackerType", tracker)

    def _subscribe(self, running: RunningDetector) -> None:
        for event_type, method in handlers(type(running.detector)).items():
            own = (getattr(running.detector, method), running)
            self._table[event_type] = (self._receivers(event_type)[0], [*self._receivers(event_type)[1], own])

    def _unsubscribe(self, running: RunningDetector, *events: type[Event]) -> None:
        """Stop delivering events of the given types to a detector; () = of all types."""
        for event_type in events or tuple(self._table):
            tracking, detecting = self._receivers(event_type)  # new lists: `dispatch` may iterate over the old
            self._table[event_type] = tracking, [each for each in detecting if each[1] is not running]

    def _activator(self, running: RunningDetector) -> Handler:
        """Return a function that subscribes a detector at its first activating event; many programs emit none."""

        def activate(event: Event) -> Any:
            self._unsubscribe(running)
            self._subscribe(running)
            method = handlers(type(running.detector)).get(type(event))
            return getattr(running.detector, method)(event) if method else None

        return activate

    def dispatch(self, event: Event) -> None:
        """Deliver one event to every tracker and detector that receives it; never raises.

        Cost: 0.3 us, and the time of the trackers and detectors.
        """
        kind = type(event)
        self._received_types.add(kind)
        receivers = self._table.get(kind)
        if receivers is None:
            return
        derived: list[Event] = []
        for handle, tracker in receivers[0]:
            try:
                if (fact := handle(event)) is not None:
                    derived.append(fact)
            except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
                self._disable_tracker(tracker, error)
        for handle, running in self._table[kind][1]:
            try:
                if evidence := handle(event):
                    for each in [evidence] if isinstance(evidence, Evidence) else evidence:
                        self._add_finding(running.watched, each, event)
            except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
                self._disable(running, "its detector", error)
        for fact in derived:
            fact.update, fact.backward_count, fact.time_s = event.update, event.backward_count, event.time_s
            self.dispatch(fact)

    @property
    def suppressed_count(self) -> int:
        """Number of suppressed findings."""
        return len(self._suppressed)

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings so far, the most important first."""
        return tuple(sorted(self._findings.values(), key=by_importance))

    def verdicts(
        self, unavailable_events: Mapping[type[Event], str] = MappingProxyType({})
    ) -> Sequence[FailureVerdict]:
        """Return the verdict on every failure of the catalogue.

        Args:
            unavailable_events: event type that cannot be traced -> the reason.
        """
        fired = {finding.code for finding in self._findings.values()}
        return [self._verdict(watched.failure.code, fired, unavailable_events) for watched in self._failures]

    def _verdict(self, code: str, fired: set[str], unavailable_events: Mapping[type[Event], str]) -> FailureVerdict:
        if code in fired:
            more = self._overflow.get(code)
            return FailureVerdict(code, Verdict.FIRED, f"seen {more} more times, at other lines" if more else "")
        if code in {suppressed for suppressed, *_ in self._suppressed}:
            return FailureVerdict(code, Verdict.NOT_JUDGED, "suppressed by a comment or the settings")
        running = self._running.get(code)
        if running is None:
            return FailureVerdict(code, Verdict.NOT_JUDGED, UNPROVABLE_AT_RUN_TIME)
        needed = running.events | running.facts
        unavailable = (reason for each, reason in unavailable_events.items() if each in needed)
        obstacle = self._broken.get(code) or next(unavailable, "")
        if not obstacle and StepTaken in running.events and self._lacks_updates():
            obstacle = NO_UPDATE
        if obstacle:
            return FailureVerdict(code, Verdict.NOT_JUDGED, obstacle)
        if not self._received_types.intersection(running.events):
            return FailureVerdict(code, Verdict.NOT_APPLICABLE, "the program has no such operation")
        reason = running.detector.inconclusive()
        return FailureVerdict(code, Verdict.NOT_JUDGED, reason) if reason else FailureVerdict(code, Verdict.PASSED)

    def _lacks_updates(self) -> bool:
        """Return True if backward passes, but no updates, were seen."""
        received = self._received_types
        return BackwardStarted in received and StepTaken not in received and TracingGap not in received

    def _disable_tracker(self, tracker: Tracker, error: Exception) -> None:
        """Disable a tracker and every detector that uses it."""
        for event_type, (tracking, detecting) in self._table.items():
            self._table[event_type] = [each for each in tracking if each[1] is not tracker], detecting
        for running in self._running.values():
            if type(tracker) in running.trackers and running.watched.failure.code not in self._broken:
                self._disable(running, "what it rests on", error)

    def _disable(self, running: RunningDetector, what: str, error: Exception) -> None:
        code = running.watched.failure.code
        self._broken[code] = f"{what} failed: {describe_error(error)}"
        self._unsubscribe(running)
        self._on_problem(f"{code} can no longer be judged", error)

    def _add_finding(self, watched: WatchedFailure, evidence: Evidence, event: Event) -> None:
        failure, location = watched.failure, _resolve_location(evidence.location)
        key = (failure.code, location and location[:2], evidence.dedup_key)
        existing = self._findings.get(key)
        if existing is not None:
            self._findings[key] = replace(existing, count=existing.count + 1)
            return
        if key in self._suppressed:
            return
        if self._counts.get(failure.code, 0) >= MAX_FINDINGS_PER_FAILURE:
            self._overflow[failure.code] = self._overflow.get(failure.code, 0) + 1
            return
        self._counts[failure.code] = self._counts.get(failure.code, 0) + 1
        if self._is_suppressed(failure.code, location):
            self._suppressed.add(key)
            return
        finding = Finding(
            code=failure.code,
            slug=watched.slug,
            title=failure.title,
            severity=evidence.severity or failure.severity,
            message=evidence.message,
            location=location,
            related=tuple((resolved, text) for each, text in evidence.related if (resolved := _resolve_location(each))),
            first_update=event.update if evidence.first_update is None else evidence.first_update,
            fix=evidence.fix or failure.fix,
            change=evidence.change,
        )
        self._findings[key] = finding
        self._on_finding(finding)


def _resolve_location(location: CodePosition | SourceLocation | None) -> SourceLocation | None:
    return location.source_location if isinstance(location, CodePosition) else location
