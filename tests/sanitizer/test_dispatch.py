from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from trueloop.core.findings import Evidence, FailureVerdict, Finding, Severity, SourceLocation, Verdict
from trueloop.failures import failure as failures
from trueloop.failures.failure import Failure
from trueloop.sanitizer.dispatch import MOST, Judge, Watched
from trueloop.tracing.events import Event, ModeSet, Ref, TracingGap


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
    )


def failure(
    observe: Callable[[Any], Any] | None,
    *,
    code: str = "GRD901",
    severity: Severity = Severity.ERROR,
    moments: tuple[type[Event], ...] = (TracingGap,),
    rouses: tuple[type[Event], ...] = (),
    abstains: str = "",
) -> Watched:
    wanted, rousing = moments, rouses

    class Detector(failures.Detector):
        subscribes_to = wanted
        activated_by = rousing

        def observe(self, event: Any) -> Evidence | Iterable[Evidence] | None:
            assert observe is not None
            return observe(event)

        def inconclusive(self) -> str:
            return abstains

    made = Failure(
        code=code, title="A made-up one", severity=severity, doc="", bad="", good="", fix="The page's fix.",
        detector=Detector if observe else None,
    )  # fmt: skip
    return Watched(made, "made-up")


def at(line: int, **fields: Any) -> Evidence:
    return Evidence(message=f"line {line}", location=SourceLocation("train.py", line), **fields)


def test_a_finding_is_told_once_and_counted():
    told: list[Finding] = []
    judge = Judge([failure(lambda event: at(7))], found=told.append)
    for update in (3, 4, 5):
        judge.hear(gap(update))
    (finding,) = judge.findings()
    assert told == [Finding(**{field: getattr(finding, field) for field in finding.__slots__} | {"count": 1})]
    assert (finding.location, finding.first_update, finding.count) == (SourceLocation("train.py", 7), 3, 3)
    assert finding.fix == "The page's fix."


def test_places_and_what_they_are_about_are_told_apart():
    judge = Judge([failure(lambda event: [at(7, dedup_key="a"), at(7, dedup_key="b"), at(8, first_update=0)])])
    judge.hear(gap(5))
    assert sorted((f.location and f.location.line, f.first_update) for f in judge.findings()) == [(7, 5), (7, 5), (8, 0)]


def test_the_gravest_come_first():
    judge = Judge([
        failure(lambda event: at(1), code="MEM901", severity=Severity.NOTE),
        failure(lambda event: at(2), severity=Severity.ERROR),
    ])  # fmt: skip
    judge.hear(gap())
    assert [finding.severity for finding in judge.findings()] == [Severity.ERROR, Severity.NOTE]


def test_a_detector_that_raises_is_out_and_the_others_go_on():
    troubles: list[str] = []

    def breaks(event: Any) -> Evidence:
        raise KeyError("x")

    watched = [failure(breaks, code="MEM901"), failure(lambda event: at(1))]
    judge = Judge(watched, trouble=lambda what, error: troubles.append(what))
    for _ in range(3):
        judge.hear(gap())
    assert troubles == ["MEM901 cannot be judged any more"]
    assert [finding.code for finding in judge.findings()] == ["GRD901"]
    assert judge.judged()[0] == FailureVerdict("MEM901", Verdict.NOT_JUDGED, "its detector failed: KeyError: 'x'")


def test_a_detector_that_is_to_be_roused_sees_nothing_before():
    seen: list[Event] = []

    def observe(event: Any) -> Evidence | None:
        seen.append(event)
        return at(event.update) if isinstance(event, TracingGap) else None

    judge = Judge([failure(observe, moments=(TracingGap, ModeSet), rouses=(ModeSet,)), failure(lambda event: at(9))])
    events = [gap(1), gap(2), mode(3), gap(4), mode(5)]
    for event in events:
        judge.hear(event)
    assert seen == events[2:]
    assert sorted(finding.location.line for finding in judge.findings() if finding.location) == [4, 9]


def test_it_is_out_where_it_raises_as_soon_as_it_is_roused():
    seen: list[Event] = []

    def breaks(event: Any) -> Iterable[Evidence]:
        seen.append(event)
        yield at(1)
        raise KeyError("x")

    judge = Judge([failure(breaks, moments=(TracingGap, ModeSet), rouses=(ModeSet,))])
    judge.hear(gap(1))
    assert judge.judged()[0].verdict is Verdict.PASSED
    for event in (mode(2), gap(3), mode(4)):
        judge.hear(event)
    assert len(seen) == 1
    assert judge.judged()[0].verdict is Verdict.FIRED


@pytest.mark.parametrize(
    ("watched", "verdict"),
    [
        (failure(lambda event: None), Verdict.PASSED),
        (failure(lambda event: at(1)), Verdict.FIRED),
        (failure(lambda event: None, moments=(ModeSet,)), Verdict.NOT_APPLICABLE),
        (failure(lambda event: None, abstains="too few updates"), Verdict.NOT_JUDGED),
        (failure(None), Verdict.NOT_JUDGED),
    ],
)
def test_verdicts(watched: Watched, verdict: Verdict):
    judge = Judge([watched])
    judge.hear(gap())
    (judged,) = judge.judged()
    assert judged.verdict is verdict
    assert bool(judged.reason) == (verdict in (Verdict.NOT_JUDGED, Verdict.NOT_APPLICABLE))


def test_what_nobody_wants_to_hear_of_is_counted_once():
    told: list[Finding] = []
    judge = Judge([failure(lambda event: at(7))], found=told.append, silenced=lambda code, site: True)
    judge.hear(gap())
    judge.hear(gap())
    assert (judge.silenced, judge.findings(), told) == (1, (), [])
    assert judge.judged()[0].verdict is Verdict.NOT_JUDGED


def test_a_program_with_too_many_faults_has_the_rest_counted():
    lines = iter(range(1, 10**6))
    told: list[Finding] = []
    judge = Judge([failure(lambda event: at(next(lines)))], found=told.append)
    for update in range(MOST + 30):
        judge.hear(gap(update))
    assert len(judge.findings()) == len(told) == MOST
    assert judge.judged() == [FailureVerdict("GRD901", Verdict.FIRED, "seen 30 more times, at other places")]


def test_a_fault_that_is_listed_is_counted_even_when_the_list_is_full():
    lines = iter([*range(1, MOST + 1), 1, 1])
    judge = Judge([failure(lambda event: at(next(lines)))])
    for update in range(MOST + 2):
        judge.hear(gap(update))
    assert {finding.count for finding in judge.findings()} == {1, 3}


def test_only_what_is_wanted_is_heard():
    seen: list[Any] = []
    judge = Judge([failure(seen.append, moments=(ModeSet,))])
    judge.hear(gap())
    judge.hear(mode())
    assert [type(event) for event in seen] == [ModeSet]


def test_what_torch_does_not_tell_is_not_judged():
    judge = Judge([failure(lambda event: None), failure(lambda event: at(1), code="GRD902")])
    judge.hear(gap())
    assert [each.verdict for each in judge.judged({TracingGap: "torch is silent"})] == [Verdict.NOT_JUDGED, Verdict.FIRED]
    assert judge.judged({TracingGap: "torch is silent"})[0].reason == "torch is silent"
    assert judge.judged({ModeSet: "torch is silent"})[0].verdict is Verdict.PASSED
