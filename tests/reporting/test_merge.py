from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trueloop.core.findings import ExplainedError, FailureVerdict, Finding, Report, Severity, Verdict
from trueloop.reporting.json_report import from_json, to_json
from trueloop.reporting.merge import merge_reports


def test_a_single_report_is_unchanged(report: Report):
    assert merge_reports({0: report}) == report


def test_equal_findings_are_merged(report: Report):
    both = merge_reports({1: report, 0: report})
    assert [finding.message for finding in both.findings] == [finding.message for finding in report.findings]
    assert both.findings[0].count == 2 * 1199
    assert both.updates == report.updates


def test_a_finding_of_some_ranks_names_them(report: Report, finding: Finding):
    clean = replace(report, findings=())
    three = merge_reports({0: clean, 1: replace(report, findings=(finding,)), 2: replace(report, findings=(finding,))})
    assert three.findings[0].message == f"{finding.message} (ranks 1, 2 of 3)"
    one = merge_reports({0: clean, 1: replace(report, findings=(finding,))})
    assert one.findings[0].message.endswith("(rank 1 of 2)")


def test_equal_lines_with_different_numbers_are_merged(report: Report, finding: Finding):
    mine = replace(report, findings=(finding,))
    theirs = replace(report, findings=(replace(finding, message="The norm is 24.1.", first_update=0),))
    (found,) = merge_reports({0: mine, 1: theirs}).findings
    assert (found.message, found.first_update) == (finding.message, 0)


def test_two_findings_at_one_line_stay_separate(report: Report, finding: Finding):
    twice = replace(report, findings=(finding, replace(finding, message="Another parameter.")))
    assert len(merge_reports({0: twice, 1: twice}).findings) == 2


def test_the_most_severe_findings_come_first(report: Report, finding: Finding):
    note = replace(finding, severity=Severity.NOTE, code="MEM001")
    found = merge_reports({0: replace(report, findings=(note,)), 1: replace(report, findings=(finding,))}).findings
    assert [each.severity for each in found] == [Severity.ERROR, Severity.NOTE]


@pytest.mark.parametrize(
    ("verdicts", "merged"),
    [
        ([Verdict.PASSED, Verdict.FIRED], Verdict.FIRED),
        ([Verdict.PASSED, Verdict.NOT_JUDGED], Verdict.NOT_JUDGED),
        ([Verdict.NOT_APPLICABLE, Verdict.PASSED], Verdict.PASSED),
    ],
)
def test_verdicts_are_merged_per_failure(verdicts: list[Verdict], merged: Verdict):
    reports = {
        rank: Report(findings=(), verdicts=(FailureVerdict("GRD001", each),)) for rank, each in enumerate(verdicts)
    }
    assert merge_reports(reports).verdicts == (FailureVerdict("GRD001", merged),)


def test_a_rank_without_report_is_a_problem(report: Report):
    merged = merge_reports({0: report}, missing=[1])
    assert merged.problems == (f"rank 0: {report.problems[0]}", "rank 1 ended without a report")
    assert merged.findings[0].message.endswith("(rank 0 of 2)")


def test_reports_are_exchanged_as_json(report: Report):
    sent = from_json(json.loads(json.dumps(to_json(report))))
    assert len(merge_reports({0: report, 1: sent}).findings) == len(report.findings)


def test_the_error_of_the_lowest_rank_is_reported(report: Report, error: ExplainedError):
    other = replace(error, kind="out-of-memory")
    merged = merge_reports({0: report, 1: replace(report, error=error), 2: replace(report, error=other)}).error
    assert merged is not None
    assert merged.kind == "shape-mismatch"
    assert merged.meaning.startswith("On rank 1: `head`")
    assert merge_reports({0: replace(report, error=error)}).error == error
