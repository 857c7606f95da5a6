"""Dispatches events to the detectors of the catalogue, and collects their findings and verdicts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from trueloop.core.findings import (
    UNPROVABLE_AT_RUN_TIME,
    CodePosition,
    Evidence,
    FailureVerdict,
    Finding,
    Severity,
    SourceLocation,
    Verdict,
)
from trueloop.failures.failure import BaseDetector, Failure
from trueloop.tracing.evaluation_passes import DERIVED_EVENTS
from trueloop.tracing.events import Event
from trueloop.tracing.stream import describe_error

MAX_FINDINGS_PER_FAILURE: Final = 50  # findings of one code that are listed; the others are only counted


class WatchedFailure(NamedTuple):
    """A failure of the catalogue to watch for, with its slug."""

    failure: Failure
    slug: str


Observe = Callable[[Any], Evidence | Iterable[Evidence] | None]


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
        self._detectors: list[tuple[WatchedFailure, BaseDetector | None]] = []
        self._observers: dict[type[Event], list[Observe]] = {}
        self._failure_of: dict[Observe, WatchedFailure] = {}
        """Observe function -> its failure; separate, since observe functions are called a hundred times per update."""
        self._broken: dict[str, str] = {}
        self._received_types: set[type[Event]] = set()
        self._trackers: dict[type[Event], list[Callable[[Any], Event | None]]] = {}
        """Event type -> the trackers that derive further events from it."""
        for watched in catalogue:
            detector = watched.failure.detector() if watched.failure.detector else None
            self._detectors.append((watched, detector))
            if detector is not None:
                self._failure_of[detector.observe] = watched
                if detector.activated_by:
                    self._subscribe(self._activator(watched, detector), detector.activated_by)
                else:
                    self._subscribe(detector.observe, detector.subscribes_to)
        for kind, tracker in DERIVED_EVENTS.items():
            if kind in self._observers:
                observe = tracker().observe
                for event_type in tracker.subscribes_to:
                    self._trackers.setdefault(event_type, []).append(observe)

    def _subscribe(self, observe: Observe, event_types: Iterable[type[Event]]) -> None:
        for event_type in event_types:
            self._observers[event_type] = [*self._observers.get(event_type, ()), observe]

    def _activator(self, watched: WatchedFailure, detector: BaseDetector) -> Observe:
        """Return a function that subscribes a detector at its first activating event; many programs emit none."""

        def activate(event: Event) -> Any:
            self._unsubscribe(watched)
            self._subscribe(detector.observe, detector.subscribes_to)
            return detector.observe(event)

        self._failure_of[activate] = watched
        return activate

    def dispatch(self, event: Event) -> None:
        """Deliver one event to every subscribed detector; never raises.

        Cost: 0.3 us, and the time of the detectors.
        """
        kind = type(event)
        self._received_types.add(kind)
        for observe in self._observers.get(kind, ()):
            try:
                if evidence := observe(event):
                    for each in [evidence] if isinstance(evidence, Evidence) else evidence:
                        self._add_finding(self._failure_of[observe], each, event)
            except Exception as error:  # noqa: BLE001 - an internal error must never reach the program
                self._disable(observe, error)
        for derive in self._trackers.get(kind, ()):
            derived = derive(event)
            if derived is not None:
                derived.update, derived.backward_count = event.update, event.backward_count
                derived.time_s = event.time_s
                self.dispatch(derived)

    @property
    def suppressed_count(self) -> int:
        """Number of suppressed findings."""
        return len(self._suppressed)

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings so far, sorted by severity, then by first update."""
        order = list(Severity)
        return tuple(sorted(self._findings.values(), key=lambda f: (order.index(f.severity), f.first_update or 0)))

    def verdicts(
        self, unavailable_events: Mapping[type[Event], str] = MappingProxyType({})
    ) -> Sequence[FailureVerdict]:
        """Return the verdict on every failure of the catalogue.

        Args:
            unavailable_events: event type that cannot be traced -> the reason.
        """
        fired = {finding.code for finding in self._findings.values()}
        return [
            self._verdict(watched.failure, detector, fired, unavailable_events) for watched, detector in self._detectors
        ]

    def _verdict(
        self,
        failure: Failure,
        detector: BaseDetector | None,
        fired: set[str],
        unavailable_events: Mapping[type[Event], str],
    ) -> FailureVerdict:
        code = failure.code
        if code in fired:
            more = self._overflow.get(code)
            return FailureVerdict(code, Verdict.FIRED, f"seen {more} more times, at other lines" if more else "")
        if code in {suppressed for suppressed, *_ in self._suppressed}:
            return FailureVerdict(code, Verdict.NOT_JUDGED, "suppressed by a comment or the settings")
        if detector is None:
            return FailureVerdict(code, Verdict.NOT_JUDGED, UNPROVABLE_AT_RUN_TIME)
        event_types = [
            event_type
            for each in detector.subscribes_to
            for event_type in (DERIVED_EVENTS[each].subscribes_to if each in DERIVED_EVENTS else (each,))
        ]
        unavailable = (unavailable_events[each] for each in event_types if each in unavailable_events)
        obstacle = self._broken.get(code) or next(unavailable, "")
        if obstacle:
            return FailureVerdict(code, Verdict.NOT_JUDGED, obstacle)
        if not self._received_types.intersection(event_types):
            return FailureVerdict(code, Verdict.NOT_APPLICABLE, "the program has no such operation")
        reason = detector.inconclusive()
        return FailureVerdict(code, Verdict.NOT_JUDGED, reason) if reason else FailureVerdict(code, Verdict.PASSED)

    def _disable(self, observe: Observe, error: Exception) -> None:
        watched = self._failure_of[observe]
        code = watched.failure.code
        self._broken[code] = f"its detector failed: {describe_error(error)}"
        self._unsubscribe(watched)
        self._on_problem(f"{code} can no longer be judged", error)

    def _unsubscribe(self, watched: WatchedFailure) -> None:
        for kind, observers in self._observers.items():  # new lists, as `dispatch` may iterate over the old ones
            self._observers[kind] = [each for each in observers if self._failure_of[each] is not watched]

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
            severity=failure.severity,
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
