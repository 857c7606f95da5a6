"""Merges the reports of the ranks of one run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trueloop.core.findings import ExplainedError, FailureVerdict, Finding, Report, Severity, SourceLocation, Verdict

FindingKey = tuple[str, SourceLocation | None, int]


def merge_reports(reports: Mapping[int, Report], *, missing: Sequence[int] = ()) -> Report:
    """Merge the reports of several ranks into one. Timing and curves are those of the lowest rank.

    Args:
        reports: reports by rank; at least one.
        missing: ranks that ended without a report.

    Returns:
        The report. Equal findings, of one code at one line, are listed once, with the ranks unless all have it.
    """
    every = [reports[rank] for rank in sorted(reports)]
    several = len(reports) + len(missing) > 1
    problems = [
        f"rank {rank}: {problem}" if several else problem
        for rank in sorted(reports)
        for problem in reports[rank].problems
    ]
    return replace(
        every[0],
        findings=_merge_findings(reports, of=len(reports) + len(missing)),
        verdicts=_merge_verdicts(verdict for each in every for verdict in each.verdicts),
        suppressed=max(each.suppressed for each in every),
        updates=max(each.updates for each in every),
        updates_traced=max(each.updates_traced for each in every),
        seconds=max(each.seconds for each in every),
        overhead_s=max(each.overhead_s for each in every),
        error=_first_error(reports, several=several),
        problems=(*problems, *(f"rank {rank} ended without a report" for rank in missing)),
    )


def _first_error(reports: Mapping[int, Report], *, several: bool) -> ExplainedError | None:
    """Return the error of the lowest rank that has one: errors of other ranks mostly follow from it."""
    for rank in sorted(reports):
        error = reports[rank].error
        if error is not None:
            return replace(error, meaning=f"On rank {rank}: {error.meaning}") if several else error
    return None


def _merge_findings(reports: Mapping[int, Report], *, of: int) -> tuple[Finding, ...]:
    found: dict[FindingKey, dict[int, Finding]] = {}
    for rank in sorted(reports):
        for key, finding in _number_findings(reports[rank].findings):
            found.setdefault(key, {})[rank] = finding
    order = list(Severity)
    together = [_merge_finding(by_rank, of=of) for by_rank in found.values()]
    return tuple(sorted(together, key=lambda finding: (order.index(finding.severity), finding.first_update or 0)))


def _number_findings(findings: Iterable[Finding]) -> Iterable[tuple[FindingKey, Finding]]:
    """Number the findings with the same code and line, in their order: they are about different objects."""
    seen: dict[tuple[str, SourceLocation | None], int] = {}
    for finding in findings:
        place = (finding.code, finding.location)
        seen[place] = seen.get(place, -1) + 1
        yield (*place, seen[place]), finding


def _merge_finding(by_rank: Mapping[int, Finding], *, of: int) -> Finding:
    findings = list(by_rank.values())
    since = [each.first_update for each in findings if each.first_update is not None]
    noun = "rank" if len(by_rank) == 1 else "ranks"
    where = f" ({noun} {', '.join(map(str, by_rank))} of {of})" if len(by_rank) < of else ""
    return replace(
        findings[0],
        message=findings[0].message + where,
        count=sum(each.count for each in findings),
        first_update=min(since, default=None),
    )


def _merge_verdicts(verdicts: Iterable[FailureVerdict]) -> tuple[FailureVerdict, ...]:
    """Return one verdict for each failure: what fired anywhere has fired, what one could not judge is not judged."""
    order = (Verdict.FIRED, Verdict.NOT_JUDGED, Verdict.PASSED, Verdict.NOT_APPLICABLE)
    gravest: dict[str, FailureVerdict] = {}
    for each in verdicts:
        known = gravest.setdefault(each.code, each)
        if order.index(each.verdict) < order.index(known.verdict):
            gravest[each.code] = each
    return tuple(gravest.values())
