from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from trueloop.core.findings import Evidence, FailureVerdict, Finding, Severity, SourceLocation, Verdict
from trueloop.failures import failure as failures
from trueloop.failures.failure import Failure
from trueloop.sanitizer.dispatch import MAX_FINDINGS_PER_FAILURE, DetectorDispatcher, WatchedFailure
from trueloop.tracing.events import Event, ModeSet, Ref, TracingGap
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows


def gap(update: int = 0) -> TracingGap:
    return TracingGap(update=update, backward_count=update, time_s=0.0, updates=1)


def mode(update: int = 0) -> ModeSet:
    return ModeSet(
        update=update,
        backward_count=0,
        time_s=0.0,
        module=Ref("Net", "Net"),
        training=True,
        changed=True,
        parameters=frozenset(),
        live_module=None,
    )


def failure(
    observe: Callable[[Any], Any] | None,
    *,
    code: str = "GRD901",
    severity: Severity = Severity.ERROR,
    subscribes_to: tuple[type[Event], ...] = (TracingGap,),
    activated_by: tuple[type[Event], ...] = (),
    inconclusive_reason: str = "",
) -> WatchedFailure:
    detector_activated_by = activated_by

    class Detector(failures.BaseDetector):
        activated_by = detector_activated_by

        def inconclusive(self) -> str:
            return inconclusive_reason

    for event_type in subscribes_to:
        setattr(Detector, event_type.HANDLER, lambda self, event: observe(event))

    made_up = Failure(
        code=code, title="A made-up failure", severity=severity, doc="", bad="", good="", fix="The page's fix.",
        detector=Detector if observe else None,
    )  # fmt: skip
    return WatchedFailure(made_up, "made-up")


def at(line: int, **fields: Any) -> Evidence:
    return Evidence(message=f"line {line}", location=SourceLocation("train.py", line), **fields)


def test_a_finding_is_reported_once_and_counted():
    reported: list[Finding] = []
    judge = DetectorDispatcher([failure(lambda event: at(7))], on_finding=reported.append)
    for update in (3, 4, 5):
        judge.dispatch(gap(update))
    (finding,) = judge.findings()
    assert reported == [Finding(**{field: getattr(finding, field) for field in finding.__slots__} | {"count": 1})]
    assert (finding.location, finding.first_update, finding.count) == (SourceLocation("train.py", 7), 3, 3)
    assert finding.fix == "The page's fix."


def test_findings_are_distinguished_by_line_and_key():
    judge = DetectorDispatcher(
        [failure(lambda event: [at(7, dedup_key="a"), at(7, dedup_key="b"), at(8, first_update=0)])]
    )
    judge.dispatch(gap(5))
    assert sorted((f.location and f.location.line, f.first_update) for f in judge.findings()) == [
        (7, 5),
        (7, 5),
        (8, 0),
    ]


def test_the_most_severe_come_first():
    judge = DetectorDispatcher([
        failure(lambda event: at(1), code="MEM901", severity=Severity.NOTE),
        failure(lambda event: at(2), severity=Severity.ERROR),
    ])  # fmt: skip
    judge.dispatch(gap())
    assert [finding.severity for finding in judge.findings()] == [Severity.ERROR, Severity.NOTE]


def test_a_detector_that_raises_is_disabled_and_the_others_go_on():
    troubles: list[str] = []

    def breaks(event: Any) -> Evidence:
        raise KeyError("x")

    watched = [failure(breaks, code="MEM901"), failure(lambda event: at(1))]
    judge = DetectorDispatcher(watched, on_problem=lambda what, error: troubles.append(what))
    for _ in range(3):
        judge.dispatch(gap())
    assert troubles == ["MEM901 can no longer be judged"]
    assert [finding.code for finding in judge.findings()] == ["GRD901"]
    assert judge.verdicts()[0] == FailureVerdict("MEM901", Verdict.NOT_JUDGED, "its detector failed: KeyError: 'x'")


def test_a_detector_receives_nothing_before_its_activating_event():
    seen: list[Event] = []

    def observe(event: Any) -> Evidence | None:
        seen.append(event)
        return at(event.update) if isinstance(event, TracingGap) else None

    judge = DetectorDispatcher(
        [failure(observe, subscribes_to=(TracingGap, ModeSet), activated_by=(ModeSet,)), failure(lambda event: at(9))]
    )
    events = [gap(1), gap(2), mode(3), gap(4), mode(5)]
    for event in events:
        judge.dispatch(event)
    assert seen == events[2:]
    assert sorted(finding.location.line for finding in judge.findings() if finding.location) == [4, 9]


def test_a_detector_that_raises_on_activation_is_disabled():
    seen: list[Event] = []

    def breaks(event: Any) -> Iterable[Evidence]:
        seen.append(event)
        yield at(1)
        raise KeyError("x")

    judge = DetectorDispatcher([failure(breaks, subscribes_to=(TracingGap, ModeSet), activated_by=(ModeSet,))])
    judge.dispatch(gap(1))
    assert judge.verdicts()[0].verdict is Verdict.PASSED
    for event in (mode(2), gap(3), mode(4)):
        judge.dispatch(event)
    assert len(seen) == 1
    assert judge.verdicts()[0].verdict is Verdict.FIRED


def test_a_detector_receives_no_more_events_of_the_types_that_it_ignores():
    seen: list[Event] = []

    class Detector(failures.BaseDetector):
        def on_tracing_gap(self, event: TracingGap) -> None:
            seen.append(event)
            self.ignore(TracingGap)

        def on_mode_set(self, event: ModeSet) -> Evidence:
            seen.append(event)
            return at(event.update)

    watched, others = failure(lambda event: None), list[Event]()
    watched = watched._replace(failure=replace(watched.failure, detector=Detector))
    judge = DetectorDispatcher([watched, failure(others.append, code="GRD902")])
    events = [gap(1), gap(2), mode(3), gap(4), mode(5)]
    for event in events:
        judge.dispatch(event)
    assert seen == [events[0], events[2], events[4]]
    assert others == [events[0], events[1], events[3]]
    assert judge.verdicts()[0].verdict is Verdict.FIRED


@pytest.mark.parametrize(
    ("watched", "verdict"),
    [
        (failure(lambda event: None), Verdict.PASSED),
        (failure(lambda event: at(1)), Verdict.FIRED),
        (failure(lambda event: None, subscribes_to=(ModeSet,)), Verdict.NOT_APPLICABLE),
        (failure(lambda event: None, inconclusive_reason="too few updates"), Verdict.NOT_JUDGED),
        (failure(None), Verdict.NOT_JUDGED),
    ],
)
def test_verdicts(watched: WatchedFailure, verdict: Verdict):
    judge = DetectorDispatcher([watched])
    judge.dispatch(gap())
    (judged,) = judge.verdicts()
    assert judged.verdict is verdict
    assert bool(judged.reason) == (verdict in (Verdict.NOT_JUDGED, Verdict.NOT_APPLICABLE))


def test_a_suppressed_finding_is_counted_once():
    reported: list[Finding] = []
    judge = DetectorDispatcher(
        [failure(lambda event: at(7))], on_finding=reported.append, is_suppressed=lambda code, site: True
    )
    judge.dispatch(gap())
    judge.dispatch(gap())
    assert (judge.suppressed_count, judge.findings(), reported) == (1, (), [])
    assert judge.verdicts()[0].verdict is Verdict.NOT_JUDGED


def test_findings_beyond_the_limit_are_counted():
    lines = iter(range(1, 10**6))
    reported: list[Finding] = []
    judge = DetectorDispatcher([failure(lambda event: at(next(lines)))], on_finding=reported.append)
    for update in range(MAX_FINDINGS_PER_FAILURE + 30):
        judge.dispatch(gap(update))
    assert len(judge.findings()) == len(reported) == MAX_FINDINGS_PER_FAILURE
    assert judge.verdicts() == [FailureVerdict("GRD901", Verdict.FIRED, "seen 30 more times, at other lines")]


def test_a_listed_finding_is_counted_even_when_the_list_is_full():
    lines = iter([*range(1, MAX_FINDINGS_PER_FAILURE + 1), 1, 1])
    judge = DetectorDispatcher([failure(lambda event: at(next(lines)))])
    for update in range(MAX_FINDINGS_PER_FAILURE + 2):
        judge.dispatch(gap(update))
    assert {finding.count for finding in judge.findings()} == {1, 3}


def test_detectors_receive_only_subscribed_events():
    seen: list[Any] = []
    judge = DetectorDispatcher([failure(seen.append, subscribes_to=(ModeSet,))])
    judge.dispatch(gap())
    judge.dispatch(mode())
    assert [type(event) for event in seen] == [ModeSet]


def test_unreadable_graphs_are_not_judged():
    judge = DetectorDispatcher([failure(lambda event: None), failure(lambda event: at(1), code="GRD902")])
    judge.dispatch(gap())
    assert [each.verdict for each in judge.verdicts({TracingGap: "torch is silent"})] == [
        Verdict.NOT_JUDGED,
        Verdict.FIRED,
    ]
    assert judge.verdicts({TracingGap: "torch is silent"})[0].reason == "torch is silent"
    assert judge.verdicts({ModeSet: "torch is silent"})[0].verdict is Verdict.PASSED


def test_detectors_share_the_trackers_that_they_name():
    """What a tracker receives does not make a failure applicable: the detector's own events do."""

    def detector() -> type[failures.BaseDetector]:
        class Detector(failures.BaseDetector):
            windows: AccumulationWindows

            def on_mode_set(self, event: ModeSet) -> Evidence:
                return at(event.update, dedup_key=self.windows)

        return Detector

    def watched(code: str) -> WatchedFailure:
        example = failure(None, code=code)
        return example._replace(failure=replace(example.failure, detector=detector()))

    judge = DetectorDispatcher([watched("GRD901"), watched("GRD902")])
    judge.dispatch(gap())
    assert [verdict.verdict for verdict in judge.verdicts()] == [Verdict.NOT_APPLICABLE] * 2
    reasons = [verdict.reason for verdict in judge.verdicts({TracingGap: "no gaps"})]
    assert reasons == ["no gaps", "no gaps"], "the tracker needs them"
    judge.dispatch(mode(3))
    first, second = judge._findings
    assert first[2] is second[2]
    assert isinstance(first[2], AccumulationWindows)
