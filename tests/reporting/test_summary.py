from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trueloop.core.findings import FailureVerdict, Finding, Report, Severity, Verdict
from trueloop.reporting.summary import (
    Outcome,
    describe_learning,
    format_counts,
    format_occurrences,
    format_path,
    headline,
    outcome,
    overhead_share,
    reasons_not_judged,
    repeat_notes,
)

CLEAN = Report(findings=(), verdicts=(FailureVerdict("GRD001", Verdict.PASSED),), updates=1200, seconds=3.0)


def test_a_run_without_findings_is_clean():
    assert outcome(CLEAN) is Outcome.CLEAN
    assert headline(CLEAN) == "No silent failure found in 1200 updates"


def test_a_run_without_steps_is_not_judged():
    never = replace(CLEAN, updates=0)
    assert outcome(never) is Outcome.NOT_JUDGED
    assert headline(never) == "Not judged: no update was seen"
    assert outcome(Report(findings=())) is Outcome.NOT_JUDGED


def test_a_linted_file_is_judged_without_updates():
    read = replace(CLEAN, updates=0, seconds=0.0, files=12)
    assert outcome(read) is Outcome.CLEAN
    assert headline(read) == "No silent failure found in 12 files"


def test_the_headline_has_the_severity(report: Report):
    errors, warning, note = report.findings
    say = {
        (errors, errors, warning, note): "2 errors, 1 warning, 1 note: this run is not training what you think",
        (warning,): "1 warning in 1200 updates: look at this before you trust the result",
        (warning, note): "1 warning, 1 note in 1200 updates: look at these before you trust the result",
        (note,): "No silent failure found in 1200 updates, 1 note",
    }
    for findings, message in say.items():
        assert headline(replace(report, findings=findings)) == message
        assert outcome(replace(report, findings=findings)) is Outcome.FINDINGS
    assert headline(replace(report, findings=(errors,), updates=0)) == "1 error: no update was seen"
    assert headline(replace(report, findings=(note,), updates=0)) == "Not judged: no update was seen, 1 note"
    assert report.highest_severity() is Severity.ERROR


def test_verdicts_are_counted_and_reasons_grouped(report: Report):
    assert format_counts(report) == "4 of 8 checks judged (3 fired, 1 passed); 1 not applicable, 3 not judged"
    assert list(reasons_not_judged(report).values()) == [["DAT001", "DAT002"], ["CKP003"]]
    assert repeat_notes(report) == {"GRD001": "seen 312 more times, at other lines"}


def test_a_loss_without_a_constant_answer_is_not_judged(report: Report):
    without = replace(report, learning=None)
    assert "loss" in without.series
    assert describe_learning(without).startswith("not judged: ")
    assert not describe_learning(replace(without, series={}))


def test_overhead_is_a_share_of_the_time(report: Report):
    assert overhead_share(report) == 0.0125
    assert overhead_share(Report(findings=())) == 0


def test_paths_are_relative_to_the_base(tmp_path: Path):
    assert format_path(str(tmp_path / "a" / "train.py"), tmp_path) == str(Path("a") / "train.py")
    assert format_path("/elsewhere/train.py", tmp_path) == "/elsewhere/train.py"
    assert format_path("<ipython-input-1>", tmp_path) == "<ipython-input-1>"


def test_occurrences_are_formatted(finding: Finding):
    assert format_occurrences(finding) == "since update 1, 1199 times"
    assert format_occurrences(replace(finding, count=1)) == "at update 1"
    assert format_occurrences(replace(finding, first_update=None)) == "1199 times"
    assert format_occurrences(replace(finding, first_update=None, count=1)) == ""
