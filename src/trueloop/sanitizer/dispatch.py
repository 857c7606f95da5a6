"""Events to findings: every detector of the catalogue hears the events it wants, and what it is certain of is kept."""

from __future__ import annotations

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
from trueloop.failures.failure import Detector, Failure
from trueloop.tracing.evaluation_passes import DERIVED_EVENTS
from trueloop.tracing.events import Event
from trueloop.tracing.stream import describe_error

MAX_FINDINGS_PER_FAILURE: Final = 50  # findings of one code that are kept apart; a program with more of them is read no further


class WatchedFailure(NamedTuple):
    """A failure to watch for."""

    failure: Failure
    slug: str


Observe = Callable[[Any], Evidence | Iterable[Evidence] | None]


class DetectorDispatcher:
    """One run's detectors and what they have found.

    Args:
        catalogue: what to watch for.
        on_finding: called with each finding when it is first certain, from within the program's own call.
        suppressed_count: whether the program asks not to hear of a code at a line.
        on_problem: told of a detector that raised; the others go on.
    """

    def __init__(
        self,
        catalogue: Iterable[WatchedFailure],
        *,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        is_suppressed: Callable[[str, SourceLocation | None], bool] = lambda code, site: False,
        on_problem: Callable[[str, BaseException], None] = lambda what, error: None,
    ) -> None:
        self._found, self._silenced, self._trouble = on_finding, is_suppressed, on_problem
        self._findings: dict[Any, Finding] = {}
        self._unwanted: set[Any] = set()
        self._kept: dict[str, int] = {}
        self._beyond: dict[str, int] = {}
        self._seats: list[tuple[WatchedFailure, Detector | None]] = []
        self._hearing: dict[type[Event], list[Observe]] = {}
        self._watched: dict[Observe, WatchedFailure] = {}
        """What each of them is of; they are called a hundred times in an update, and asked for this once in a run."""
        self._broken: dict[str, str] = {}
        self._heard: set[type[Event]] = set()
        self._finding: dict[type[Event], list[Callable[[Any], Event | None]]] = {}
        """What makes further events of one."""
        for watched in catalogue:
            detector = watched.failure.detector() if watched.failure.detector else None
            self._seats.append((watched, detector))
            if detector is not None:
                self._watched[detector.observe] = watched
                if detector.activated_by:
                    self._listen(self._asleep(watched, detector), detector.activated_by)
                else:
                    self._listen(detector.observe, detector.subscribes_to)
        for kind, finder in DERIVED_EVENTS.items():
            if kind in self._hearing:
                observe = finder().observe
                for moment in finder.subscribes_to:
                    self._finding.setdefault(moment, []).append(observe)

    def _listen(self, observe: Observe, moments: Iterable[type[Event]]) -> None:
        for moment in moments:
            self._hearing[moment] = [*self._hearing.get(moment, ()), observe]

    def _asleep(self, watched: WatchedFailure, detector: Detector) -> Observe:
        """Stand in for a detector that sees nothing yet: most programs never wrap a model, or scale a loss."""

        def rouse(event: Event) -> Any:
            self._leave(watched)
            self._listen(detector.observe, detector.subscribes_to)
            return detector.observe(event)

        self._watched[rouse] = watched
        return rouse

    def dispatch(self, event: Event) -> None:
        """Pass one event to every detector that wants it; never raises.

        Cost: 0.3 us, and what the detectors take.
        """
        kind = type(event)
        self._heard.add(kind)
        for observe in self._hearing.get(kind, ()):
            try:
                if evidence := observe(event):
                    for each in [evidence] if isinstance(evidence, Evidence) else evidence:
                        self._keep(self._watched[observe], each, event)
            except Exception as error:  # noqa: BLE001 - the host is sacred, and so are the other detectors
                self._dismiss(observe, error)
        for find in self._finding.get(kind, ()):
            further = find(event)
            if further is not None:
                further.update, further.backward_count, further.time_s = event.update, event.backward_count, event.time_s
                self.dispatch(further)

    @property
    def suppressed_count(self) -> int:
        """Count the findings that nobody wanted to hear of."""
        return len(self._unwanted)

    def findings(self) -> tuple[Finding, ...]:
        """Return what was found so far: errors first, then by when it was first seen."""
        order = list(Severity)
        return tuple(sorted(self._findings.values(), key=lambda f: (order.index(f.severity), f.first_update or 0)))

    def verdicts(self, unseen: Mapping[type[Event], str] = MappingProxyType({})) -> Sequence[FailureVerdict]:
        """Return the verdict on every failure of the catalogue.

        Args:
            unseen: events that could not be told, and why.
        """
        fired = {finding.code for finding in self._findings.values()}
        return [self._verdict(watched.failure, detector, fired, unseen) for watched, detector in self._seats]

    def _verdict(
        self, failure: Failure, detector: Detector | None, fired: set[str], unseen: Mapping[type[Event], str]
    ) -> FailureVerdict:
        code = failure.code
        if code in fired:
            more = self._beyond.get(code)
            return FailureVerdict(code, Verdict.FIRED, f"seen {more} more times, at other places" if more else "")
        if code in {unwanted for unwanted, *_ in self._unwanted}:
            return FailureVerdict(code, Verdict.NOT_JUDGED, "silenced, by a comment or the settings")
        if detector is None:
            return FailureVerdict(code, Verdict.NOT_JUDGED, UNPROVABLE_AT_RUN_TIME)
        moments = [
            one for each in detector.subscribes_to for one in (DERIVED_EVENTS[each].subscribes_to if each in DERIVED_EVENTS else (each,))
        ]
        why = self._broken.get(code) or next((unseen[moment] for moment in moments if moment in unseen), "")
        if why:
            return FailureVerdict(code, Verdict.NOT_JUDGED, why)
        if not self._heard.intersection(moments):
            return FailureVerdict(code, Verdict.NOT_APPLICABLE, "nothing of the kind happened")
        reason = detector.inconclusive()
        return FailureVerdict(code, Verdict.NOT_JUDGED, reason) if reason else FailureVerdict(code, Verdict.PASSED)

    def _dismiss(self, observe: Observe, error: Exception) -> None:
        watched = self._watched[observe]
        code = watched.failure.code
        self._broken[code] = f"its detector failed: {describe_error(error)}"
        self._leave(watched)
        self._trouble(f"{code} cannot be judged any more", error)

    def _leave(self, watched: WatchedFailure) -> None:
        for kind, hearing in self._hearing.items():  # a new list: the old one is being walked through
            self._hearing[kind] = [each for each in hearing if self._watched[each] is not watched]

    def _keep(self, watched: WatchedFailure, evidence: Evidence, event: Event) -> None:
        failure, site = watched.failure, _site(evidence.location)
        key = (failure.code, site and site[:2], evidence.dedup_key)
        known = self._findings.get(key)
        if known is not None:
            self._findings[key] = replace(known, count=known.count + 1)
            return
        if key in self._unwanted:
            return
        if self._kept.get(failure.code, 0) >= MAX_FINDINGS_PER_FAILURE:
            self._beyond[failure.code] = self._beyond.get(failure.code, 0) + 1
            return
        self._kept[failure.code] = self._kept.get(failure.code, 0) + 1
        if self._silenced(failure.code, site):
            self._unwanted.add(key)
            return
        finding = Finding(
            code=failure.code,
            slug=watched.slug,
            title=failure.title,
            severity=failure.severity,
            message=evidence.message,
            location=site,
            related=tuple((known, words) for place, words in evidence.related if (known := _site(place))),
            first_update=event.update if evidence.first_update is None else evidence.first_update,
            fix=evidence.fix or failure.fix,
            change=evidence.change,
        )
        self._findings[key] = finding
        self._found(finding)


def _site(place: CodePosition | SourceLocation | None) -> SourceLocation | None:
    return place.source_location if isinstance(place, CodePosition) else place
