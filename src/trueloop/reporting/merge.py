"""Merges the reports of the ranks of one run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trueloop.core.findings import ExplainedError, FailureVerdict, Finding, Report, Severity, SourceLocation, Verdict

FindingKey = tuple[str, SourceLocation | None, int]


def merge_reports(reports: Mapping[int, Report], *, missing: Sequence[int] = ()) -> Report:
    """Merge the reports of several ranks into one; its timing and curves are those of the lowest rank.

    Args:
        reports: reports by rank; there must be at least one.
        missing: ranks that ended without a report.

    Returns:
        The merged report. Findings with the same code at the same line are listed once; the message names the ranks
        that have the finding, unless all ranks have it.
    """
    ordered = [reports[rank] for rank in sorted(reports)]
    several = len(reports) + len(missing) > 1
    problems = [
        f"rank {rank}: {problem}" if several else problem
        for rank in sorted(reports)
        for problem in reports[rank].problems
    ]
    return replace(
        ordered[0],
        findings=_merge_findings(reports, rank_count=len(reports) + len(missing)),
        verdicts=_merge_verdicts(verdict for each in ordered for verdict in each.verdicts),
        suppressed=max(each.suppressed for each in ordered),
        updates=max(each.updates for each in ordered),
        updates_traced=max(each.updates_traced for each in ordered),
        seconds=max(each.seconds for each in ordered),
        overhead_s=max(each.overhead_s for each in ordered),
        error=_first_error(reports, several=several),
        problems=(*problems, *(f"rank {rank} ended without a report" for rank in missing)),
    )


def _first_error(reports: Mapping[int, Report], *, several: bool) -> ExplainedError | None:
    """Return the error of the lowest rank that has one: the errors of other ranks are mostly consequences of it."""
    for rank in sorted(reports):
        error = reports[rank].error
        if error is not None:
            return replace(error, meaning=f"On rank {rank}: {error.meaning}") if several else error
    return None


def _merge_findings(reports: Mapping[int, Report], *, rank_count: int) -> tuple[Finding, ...]:
    by_key: dict[FindingKey, dict[int, Finding]] = {}
    for rank in sorted(reports):
        for key, finding in _number_findings(reports[rank].findings):
            by_key.setdefault(key, {})[rank] = finding
    order = list(Severity)
    merged = [_merge_finding(by_rank, rank_count) for by_rank in by_key.values()]
    return tuple(sorted(merged, key=lambda finding: (order.index(finding.severity), finding.first_update or 0)))


def _number_findings(findings: Iterable[Finding]) -> Iterable[tuple[FindingKey, Finding]]:
    """Number the findings that share code and line in their order, since they are about different objects."""
    seen: dict[tuple[str, SourceLocation | None], int] = {}
    for finding in findings:
        code_and_line = (finding.code, finding.location)
        seen[code_and_line] = seen.get(code_and_line, -1) + 1
        yield (*code_and_line, seen[code_and_line]), finding


def _merge_finding(by_rank: Mapping[int, Finding], rank_count: int) -> Finding:
    findings = list(by_rank.values())
    first_updates = [each.first_update for each in findings if each.first_update is not None]
    noun = "rank" if len(by_rank) == 1 else "ranks"
    where = f" ({noun} {', '.join(map(str, by_rank))} of {rank_count})" if len(by_rank) < rank_count else ""
    return replace(
        findings[0],
        message=findings[0].message + where,
        count=sum(each.count for each in findings),
        first_update=min(first_updates, default=None),
    )


def _merge_verdicts(verdicts: Iterable[FailureVerdict]) -> tuple[FailureVerdict, ...]:
    """Return one verdict per failure: the first of "fired", "not judged", "passed", "not applicable" on any rank."""
    order = (Verdict.FIRED, Verdict.NOT_JUDGED, Verdict.PASSED, Verdict.NOT_APPLICABLE)
    merged: dict[str, FailureVerdict] = {}
    for each in verdicts:
        known = merged.setdefault(each.code, each)
        if order.index(each.verdict) < order.index(known.verdict):
            merged[each.code] = each
    return tuple(merged.values())
