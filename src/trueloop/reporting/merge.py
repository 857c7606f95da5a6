"""Merge the reports of the ranks of one run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trueloop.core.findings import (
    ExplainedError,
    FailureVerdict,
    Finding,
    Report,
    SourceLocation,
    Verdict,
    by_importance,
)

FindingKey = tuple[str, SourceLocation | None, int]


def merge_reports(reports: Mapping[int, Report], *, missing: Sequence[int] = ()) -> Report:
    """Merge the reports of several ranks into one; timing and curves come from the lowest rank.

    Args:
        reports: reports by rank; there must be at least one.
        missing: ranks that ended without a report.

    Returns:
        The merged report. Findings with the same code at the same line are listed once; the message names the ranks
        that have the finding, unless all ranks have it.
    """
    ordered = [reports[rank] for rank in sorted(reports)]
    rank_count = len(reports) + len(missing)
    problems = [
        f"rank {rank}: {problem}" if rank_count > 1 else problem
        for rank in sorted(reports)
        for problem in reports[rank].problems
    ]
    return replace(
        ordered[0],
        findings=_merge_findings(reports, rank_count),
        verdicts=_merge_verdicts(verdict for report in ordered for verdict in report.verdicts),
        suppressed=max(report.suppressed for report in ordered),
        updates=max(report.updates for report in ordered),
        updates_traced=max(report.updates_traced for report in ordered),
        seconds=max(report.seconds for report in ordered),
        overhead_s=max(report.overhead_s for report in ordered),
        error=_first_error(reports, rank_count),
        problems=(*problems, *(f"rank {rank} ended without a report" for rank in missing)),
    )


def _first_error(reports: Mapping[int, Report], rank_count: int) -> ExplainedError | None:
    """Return the error of the lowest rank with an error: the errors of other ranks are mostly its consequences."""
    for rank in sorted(reports):
        error = reports[rank].error
        if error is not None:
            return replace(error, meaning=f"On rank {rank}: {error.meaning}") if rank_count > 1 else error
    return None


def _merge_findings(reports: Mapping[int, Report], rank_count: int) -> tuple[Finding, ...]:
    by_key: dict[FindingKey, dict[int, Finding]] = {}
    for rank in sorted(reports):
        for key, finding in _number_findings(reports[rank].findings):
            by_key.setdefault(key, {})[rank] = finding
    merged = [_merge_finding(by_rank, rank_count) for by_rank in by_key.values()]
    return tuple(sorted(merged, key=by_importance))


def _number_findings(findings: Iterable[Finding]) -> Iterable[tuple[FindingKey, Finding]]:
    """Number the findings with the same code and line from 0: they are about different objects."""
    last_numbers: dict[tuple[str, SourceLocation | None], int] = {}
    for finding in findings:
        code_and_line = (finding.code, finding.location)
        last_numbers[code_and_line] = last_numbers.get(code_and_line, -1) + 1
        yield (*code_and_line, last_numbers[code_and_line]), finding


def _merge_finding(by_rank: Mapping[int, Finding], rank_count: int) -> Finding:
    findings = list(by_rank.values())
    first_updates = [finding.first_update for finding in findings if finding.first_update is not None]
    noun = "rank" if len(by_rank) == 1 else "ranks"
    ranks = f" ({noun} {', '.join(map(str, by_rank))} of {rank_count})" if len(by_rank) < rank_count else ""
    return replace(
        findings[0],
        message=findings[0].message + ranks,
        count=sum(finding.count for finding in findings),
        first_update=min(first_updates, default=None),
    )


def _merge_verdicts(verdicts: Iterable[FailureVerdict]) -> tuple[FailureVerdict, ...]:
    """Return one verdict per failure: the first of "fired", "not judged", "passed", "not applicable" on any rank."""
    order = (Verdict.FIRED, Verdict.NOT_JUDGED, Verdict.PASSED, Verdict.NOT_APPLICABLE)
    merged: dict[str, FailureVerdict] = {}
    for verdict in verdicts:
        first = merged.setdefault(verdict.code, verdict)
        if order.index(verdict.verdict) < order.index(first.verdict):
            merged[verdict.code] = verdict
    return tuple(merged.values())
