from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from trueloop.core.findings import ExplainedError, LayerState, Report
from trueloop.core.learning import HeldOutLoss, LearningSummary, LearningVerdict
from trueloop.core.source_text import Edit, Fix
from trueloop.reporting.json_report import from_json, to_json

REQUIRED = {"code", "slug", "severity", "message", "path", "line", "related", "first_update", "count", "fix"}


def test_a_report_round_trips(report: Report):
    text = json.dumps(to_json(report), allow_nan=False)
    assert repr(from_json(json.loads(text))) == repr(report)


def test_an_empty_report_round_trips(report: Report):
    assert from_json(json.loads(json.dumps(to_json(Report(findings=()))))) == Report(findings=())


def test_the_documented_keys_are_present(report: Report):
    content = to_json(report)
    assert content["schema"] == 1
    assert content["verdict"] == "findings"
    assert all(set(finding) >= REQUIRED for finding in content["findings"])
    assert content["overhead"] == {"seconds": 0.05, "share": 0.0125}
    assert content["verdicts"][3] == {"code": "GRD002", "verdict": "passed", "reason": ""}
    assert to_json(Report(findings=(), updates=1))["verdict"] == "clean"
    assert to_json(Report(findings=()))["verdict"] == "not judged"


def test_the_keys_of_a_finding(report: Report):
    first, _, last = to_json(report)["findings"]
    assert (first["line"], first["function"], first["first_update"], first["count"]) == (11, "train", 1, 1199)
    assert first["related"] == [{"path": first["path"], "line": 10, "function": "train", "message": "added here"}]
    assert first["change"] == {
        "path": first["path"],
        "line": 10,
        "function": "train",
        "text": "optimizer.zero_grad()",
        "position": "before",
    }
    assert (last["path"], last["line"], last["change"]) == (None, None, None)


def test_another_schema_is_rejected(report: Report):
    with pytest.raises(ValueError, match="schema 2"):
        from_json({**to_json(report), "schema": 2})


def test_the_keys_of_an_explained_error(report: Report, error: ExplainedError):
    assert to_json(report)["error"] is None
    content = to_json(replace(report, error=error))["error"]
    path = content["path"]
    assert (content["kind"], content["type"], content["line"], content["update"]) == (
        "shape-mismatch",
        "RuntimeError",
        9,
        3,
    )
    assert content["origin"] == {"path": path, "line": 8, "function": "train", "message": "`x` comes from here"}
    assert [each["line"] for each in content["related"]] == [6]
    assert content["meaning"] == error.meaning
    assert content["fix"] == error.fix


@pytest.mark.parametrize("bare", [False, True])
def test_an_explained_error_round_trips(report: Report, error: ExplainedError, bare: bool):
    error = replace(error, location=None, origin=None, origin_message="", other_locations=()) if bare else error
    assert from_json(json.loads(json.dumps(to_json(replace(report, error=error))))).error == error


def test_layers_and_held_out_losses_round_trip(report: Report):
    learning = LearningSummary(
        LearningVerdict.OVERFITTING, "nll", 2.3, 0.1, 2.3, 90, held_out=HeldOutLoss(0.9, 30, 1.7)
    )
    layers = (LayerState("0", 0.5, 1e-3, "relu", 0.25), LayerState("2", math.inf))
    found = replace(report, learning=learning, layers=layers)
    read = from_json(json.loads(json.dumps(to_json(found), allow_nan=False)))
    assert (read.learning, read.layers) == (learning, layers)


def test_a_report_without_an_error_key_is_read(report: Report):
    content = to_json(report)
    del content["error"]
    assert from_json(content).error is None


def test_a_lint_finding_round_trips(report: Report):
    fix = Fix((Edit(3, 4, "x"),), safe=False, description="Write x")
    found = replace(report.findings[0], column=5, end=(12, 9), cell=2, autofix=fix)
    read = Report(findings=(found,), files=7)
    assert from_json(json.loads(json.dumps(to_json(read)))) == read
    (finding,) = to_json(read)["findings"]
    assert finding["autofix"] == {"safe": False, "message": "Write x", "edits": [{"start": 3, "end": 4, "text": "x"}]}
    old = {key: value for key, value in finding.items() if key not in ("column", "end", "cell", "autofix")}
    assert from_json({**to_json(read), "findings": [old]}).findings[0].autofix is None, "written by an older version"
