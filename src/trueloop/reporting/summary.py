"""Summaries of a report that all output formats share: outcome, headline, counts."""

from collections import Counter
from enum import StrEnum
from pathlib import Path

from trueloop.core.findings import Finding, Report, Severity, Verdict
from trueloop.core.formatting import format_count, format_number, replace_unprintable
from trueloop.core.learning import LearningSummary, LearningVerdict


class Outcome(StrEnum):
    """The overall result of a report."""

    CLEAN = "clean"
    FINDINGS = "findings"
    NOT_JUDGED = "not judged"
    """Nothing could be judged: no update was seen."""


def outcome(report: Report) -> Outcome:
    """Return the overall result. Notes count as findings, although a run with only notes does not fail."""
    if report.findings:
        return Outcome.FINDINGS
    return Outcome.NOT_JUDGED if has_no_updates(report) else Outcome.CLEAN


def has_no_updates(report: Report) -> bool:
    """Return True for a run in which no update was seen, so that the absence of findings means nothing."""
    return report.updates == 0 and not report.files


def headline(report: Report) -> str:
    """Return the result in one line; if an explained error ended the run, the line starts with the error."""
    error = report.error
    return f"{error.type}, explained below. {_headline(report)}" if error else _headline(report)


def _headline(report: Report) -> str:
    severities = [finding.severity for finding in report.findings]
    counts = ", ".join(
        format_count(severities.count(severity), severity.value) for severity in Severity if severity in severities
    )
    updates = f" in {format_count(report.updates, 'update')}" if report.updates else ""
    if report.files:
        return f"{counts or 'No silent failure found'} in {format_count(report.files, 'file')}"
    if Severity.ERROR in severities:
        consequence = "this run is not training what you think" if report.updates else "no update was seen"
        return f"{counts}: {consequence}"
    if Severity.WARNING in severities:
        return f"{counts}{updates}: look at {'this' if len(severities) == 1 else 'these'} before you trust the result"
    clean = "Not judged: no update was seen" if has_no_updates(report) else f"No silent failure found{updates}"
    return clean + (f", {counts}" if counts else "")


def format_learning(learning: LearningSummary) -> str:
    """Return the verdict, and the loss next to that of a constant answer: "yes: loss 2.31 → 0.04; ..."."""
    prefixes = {LearningVerdict.LEARNING: "yes: ", LearningVerdict.UNKNOWN: ""}
    return prefixes.get(learning.verdict, f"{learning.verdict}: ") + learning.losses


def describe_learning(report: Report) -> str:
    """Return what `format_learning` says of a run, or that its loss cannot be judged; "" if no loss was read."""
    if report.learning:
        return format_learning(report.learning)
    losses = [report.series[name] for name in ("loss_read", "loss") if name in report.series]
    is_read = any(series.values for series in losses)
    return "not judged: what a constant answer costs with this loss is not known" if is_read else ""


def format_counts(report: Report, *, brief: bool = False) -> str:
    """Return the number of checks by verdict: "41 of 48 checks judged (2 fired, 39 passed); 7 not judged".

    If ``brief``, those that do not apply are left out, and the option that gives the reasons is named.
    """
    numbers = Counter(verdict.verdict for verdict in report.verdicts)

    def join(*conclusions: Verdict) -> str:
        return ", ".join(f"{numbers[verdict]} {verdict}" for verdict in conclusions if numbers[verdict])

    judged = f"{numbers[Verdict.FIRED] + numbers[Verdict.PASSED]} of {format_count(numbers.total(), 'check')} judged"
    results = join(Verdict.FIRED, Verdict.PASSED)
    not_judged = join(Verdict.NOT_JUDGED) if brief else join(Verdict.NOT_APPLICABLE, Verdict.NOT_JUDGED)
    reasons = ": --verbose says why" if brief and not_judged else ""
    return judged + (f" ({results})" if results else "") + (f"; {not_judged}{reasons}" if not_judged else "")


def reasons_not_judged(report: Report) -> dict[str, list[str]]:
    """Return the codes of failures that were not judged, by reason, most frequent first."""
    codes: dict[str, list[str]] = {}
    for code, verdict, reason in report.verdicts:
        if verdict is Verdict.NOT_JUDGED:
            codes.setdefault(reason or "no reason is known", []).append(code)
    return dict(sorted(codes.items(), key=lambda item: -len(item[1])))


def repeat_notes(report: Report) -> dict[str, str]:
    """Return, by failure code, how often a failure was seen in addition to its listed findings."""
    return {code: reason for code, verdict, reason in report.verdicts if verdict is Verdict.FIRED and reason}


def overhead_share(report: Report) -> float:
    """Return the share of the run time spent on tracing."""
    return report.overhead_s / report.seconds if report.seconds > 0 else 0.0


def format_path(path: str, base: Path | None) -> str:
    """Return a path relative to ``base`` if the path is inside that folder, else the absolute path."""
    absolute = Path(path)
    return replace_unprintable(str(absolute.relative_to(base) if base and absolute.is_relative_to(base) else absolute))


def format_occurrences(finding: Finding) -> str:
    """Return when a finding first occurred and how often: "since update 1, 1199 times".

    A finding of the linter has no update: its result is "1199 times", or "" if it occurred once.
    """
    times = f"{format_number(finding.count)} times" if finding.count > 1 else ""
    if finding.first_update is None:
        return times
    update = format_number(finding.first_update)
    return f"since update {update}, {times}" if times else f"at update {update}"
