"""Summaries of a report that all output formats share: outcome, headline, counts."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from trueloop.core.findings import FailureVerdict, Finding, Report, Severity, Verdict
from trueloop.core.formatting import format_count, format_number, replace_unprintable

ERROR_HEADLINE = "this run is not training what you think"


class Outcome(StrEnum):
    """The overall result of a report."""

    CLEAN = "clean"
    FINDINGS = "findings"
    NOT_JUDGED = "not judged"
    """Nothing could be judged: no optimizer made a step."""


def outcome(report: Report) -> Outcome:
    """Return the overall result. Notes count as findings, although a run with only notes does not fail."""
    if report.findings:
        return Outcome.FINDINGS
    return Outcome.NOT_JUDGED if has_no_updates(report) else Outcome.CLEAN


def has_no_updates(report: Report) -> bool:
    """Return True for a run in which no optimizer made a step, so that the absence of findings means nothing."""
    return report.updates == 0 and not report.files


def headline(report: Report) -> str:
    """Return the result in one line; if an explained error ended the run, the line starts with the error."""
    error = report.error
    return f"{error.type}, explained below. {_headline(report)}" if error else _headline(report)


def _headline(report: Report) -> str:
    found = [finding.severity for finding in report.findings]
    words = ", ".join(format_count(found.count(each), each.value) for each in Severity if each in found)
    where = f" in {format_count(report.updates, 'update')}" if report.updates else ""
    if report.files:
        return f"{words or 'No silent failure found'} in {format_count(report.files, 'file')}"
    if Severity.ERROR in found:
        return f"{words}: {ERROR_HEADLINE if report.updates else 'no optimizer made a step'}"
    if Severity.WARNING in found:
        return f"{words}{where}: look at {'this' if len(found) == 1 else 'these'} before you trust the result"
    clean = "Not judged: no optimizer made a step" if has_no_updates(report) else f"No silent failure found{where}"
    return clean + (f", {words}" if words else "")


def verdicts_of(report: Report, verdict: Verdict) -> Sequence[FailureVerdict]:
    """Return the judgements of a report that have the given verdict."""
    return [judged for judged in report.verdicts if judged.verdict is verdict]


def format_counts(report: Report) -> str:
    """Return the number of checks by verdict: "41 of 48 checks judged (2 fired, 39 passed); 7 not judged"."""
    numbers = {verdict: len(verdicts_of(report, verdict)) for verdict in Verdict}
    judged = numbers[Verdict.FIRED] + numbers[Verdict.PASSED]
    words = {verdict: f"{number} {verdict}" for verdict, number in numbers.items() if number}
    results = ", ".join(words.pop(verdict) for verdict in (Verdict.FIRED, Verdict.PASSED) if verdict in words)
    counts = f"{judged} of {format_count(len(report.verdicts), 'check')} judged" + (f" ({results})" if results else "")
    return "; ".join([counts, *([", ".join(words.values())] if words else [])])


def reasons_not_judged(report: Report) -> dict[str, list[str]]:
    """Return the codes of failures that were not judged, by reason, most frequent first."""
    found: dict[str, list[str]] = {}
    for each in verdicts_of(report, Verdict.NOT_JUDGED):
        found.setdefault(each.reason or "no reason is known", []).append(each.code)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def repeat_notes(report: Report) -> dict[str, str]:
    """Return, by failure code, how often a failure was seen in addition to its listed findings."""
    return {each.code: each.reason for each in verdicts_of(report, Verdict.FIRED) if each.reason}


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
    if finding.first_update is None:
        return f"{format_number(finding.count)} times" if finding.count > 1 else ""
    update = format_number(finding.first_update)
    return (
        f"since update {update}, {format_number(finding.count)} times" if finding.count > 1 else f"at update {update}"
    )
