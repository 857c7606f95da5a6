from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trueloop.core.findings import Explained, Report
from trueloop.core.source_text import Edit, Fix
from trueloop.reporting.json_report import from_json, to_json

REQUIRED = {"code", "slug", "severity", "message", "path", "line", "related", "first_update", "count", "fix"}


def test_a_report_comes_back_as_it_was(report: Report):
    written = json.dumps(to_json(report), allow_nan=False)
    assert repr(from_json(json.loads(written))) == repr(report)


def test_an_empty_report_comes_back(report: Report):
    assert from_json(json.loads(json.dumps(to_json(Report(findings=()))))) == Report(findings=())


def test_the_shape_is_the_promised_one(report: Report):
    content = to_json(report)
    assert content["schema"] == 1
    assert content["verdict"] == "findings"
    assert all(set(finding) >= REQUIRED for finding in content["findings"])
    assert content["cost"] == {"seconds": 0.05, "share": 0.0125}
    assert content["judged"][3] == {"code": "GRD002", "verdict": "passed", "reason": ""}
    assert to_json(Report(findings=(), updates=1))["verdict"] == "clean"
    assert to_json(Report(findings=()))["verdict"] == "not judged"


def test_a_finding(report: Report):
    first, _, last = to_json(report)["findings"]
    assert (first["line"], first["function"], first["first_update"], first["count"]) == (11, "train", 1, 1199)
    assert first["related"] == [{"path": first["path"], "line": 10, "function": "train", "message": "added here"}]
    assert first["change"] == {
        "path": first["path"], "line": 10, "function": "train", "text": "optimizer.zero_grad()", "where": "before",
    }  # fmt: skip
    assert (last["path"], last["line"], last["change"]) == (None, None, None)


def test_another_schema_is_refused(report: Report):
    with pytest.raises(ValueError, match="schema 2"):
        from_json({**to_json(report), "schema": 2})


def test_what_ended_the_run(report: Report, error: Explained):
    assert to_json(report)["error"] is None
    content = to_json(replace(report, error=error))["error"]
    path = content["path"]
    assert (content["kind"], content["type"], content["line"], content["update"]) == (
        "shape-mismatch", "RuntimeError", 9, 3,
    )  # fmt: skip
    assert content["made_at"] == {"path": path, "line": 8, "function": "train", "message": "`x` comes from here"}
    assert [each["line"] for each in content["related"]] == [6]
    assert content["meaning"] == error.meaning
    assert content["fix"] == error.fix


@pytest.mark.parametrize("bare", [False, True])
def test_what_ended_the_run_comes_back(report: Report, error: Explained, bare: bool):
    error = replace(error, site=None, made_at=None, made="", others=()) if bare else error
    assert from_json(json.loads(json.dumps(to_json(replace(report, error=error))))).error == error


def test_a_report_of_before_there_were_errors_is_read(report: Report):
    content = to_json(report)
    del content["error"]
    assert from_json(content).error is None


def test_what_was_found_in_a_text_comes_back(report: Report):
    fix = Fix((Edit(3, 4, "x"),), safe=False, words="Write x")
    found = replace(report.findings[0], column=5, end=(12, 9), cell=2, repair=fix)
    read = Report(findings=(found,), files=7)
    assert from_json(json.loads(json.dumps(to_json(read)))) == read
    (finding,) = to_json(read)["findings"]
    assert finding["edits"] == {"safe": False, "message": "Write x", "edits": [{"start": 3, "end": 4, "text": "x"}]}
    old = {key: value for key, value in finding.items() if key not in ("column", "end", "cell", "edits")}
    assert from_json({**to_json(read), "findings": [old]}).findings[0].repair is None, "written before there was one"
