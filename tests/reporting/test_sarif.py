from __future__ import annotations

import json
import linecache
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator, FormatChecker

from trueloop.core.findings import ExplainedError, Finding, Report, SourceLocation
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.load import catalogue
from trueloop.reporting.sarif import FINGERPRINT, to_sarif

# Version 2.1.0-rtm.5 as published by the OASIS committee and Microsoft; from the npm package
# @microsoft/jest-sarif 1.0.0-beta.0 (MIT), lib/schemas, unchanged.
SCHEMA = Path(__file__).parent / "data" / "sarif-2.1.0-rtm.5.json"


def prints(report: Report, base: Path | None = None) -> list[str]:
    return [result["partialFingerprints"][FINGERPRINT] for result in to_sarif(report, base=base)["runs"][0]["results"]]


def assert_valid(log: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA.read_text())
    written = json.loads(json.dumps(log, allow_nan=False))
    errors = Draft4Validator(schema, format_checker=FormatChecker()).iter_errors(written)
    assert not [f"{error.json_path}: {error.message}" for error in errors]


def test_the_log_is_valid_sarif(report: Report, folder: Path):
    assert_valid(to_sarif(report, base=folder))
    assert_valid(to_sarif(report))
    assert_valid(to_sarif(Report(findings=())))


def test_the_schema_rejects_invalid_logs(report: Report):
    log = to_sarif(report)
    log["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(AssertionError, match="fatal"):
        assert_valid(log)


def test_every_failure_of_the_catalogue_can_be_a_rule(finding: Finding, folder: Path):
    found = tuple(
        replace(finding, code=entry.code, slug=entry.slug, title=entry.failure.title, severity=entry.failure.severity)
        for entry in catalogue().values()
    )
    log = to_sarif(Report(findings=found), base=folder)
    assert_valid(log)
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(catalogue())
    assert all(rule["help"]["markdown"].count("### ") == 6 for rule in rules)
    assert all(rule["fullDescription"]["text"].endswith(".") for rule in rules)
    assert {rule["helpUri"][:8] for rule in rules if "helpUri" in rule} == {"https://"}


def test_a_failure_outside_the_catalogue_is_a_rule(finding: Finding):
    log = to_sarif(Report(findings=(replace(finding, code="XYZ001", slug="own-rule"),)))
    assert_valid(log)
    (rule,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert (rule["name"], rule["help"]["text"].startswith(finding.fix)) == ("OwnRule", True)
    assert "helpUri" not in rule


def test_the_log_has_rules_levels_and_locations(report: Report, folder: Path):
    log = json.loads(json.dumps(to_sarif(report, base=folder)))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [(rule["id"], rule["name"]) for rule in rules] == [
        ("GRD001", "NeverCleared"),
        ("MEM001", "GraphKept"),
        ("ENV001", "Starved"),
    ]
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
    first, _, last = run["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "train.py", "uriBaseId": "SRCROOT"}, "region": {"startLine": 11}}
    assert first["relatedLocations"][0]["message"] == {"text": "added here"}
    assert "locations" not in last
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == f"{folder.as_uri()}/"
    assert "loaders.py" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_a_fingerprint_is_independent_of_the_line_number(report: Report, folder: Path):
    before = prints(report)
    path = folder / "train.py"
    path.write_text("# one line more\n" + path.read_text())
    linecache.clearcache()
    moved = tuple(
        replace(each, location=each.location._replace(line=each.location.line + 1)) if each.location else each
        for each in report.findings
    )
    assert prints(replace(report, findings=moved)) == before
    path.write_text(path.read_text().replace("optimizer.step()", "opt.step()"))
    linecache.clearcache()
    assert prints(replace(report, findings=moved))[0] != before[0]


def test_a_fingerprint_is_independent_of_the_base_folder(report: Report, folder: Path):
    other = folder / "elsewhere"
    other.mkdir()
    (other / "train.py").write_text((folder / "train.py").read_text())
    moved = tuple(
        replace(each, location=each.location._replace(path=str(other / "train.py"))) if each.location else each
        for each in report.findings
    )
    assert prints(replace(report, findings=moved), other) == prints(report, folder)
    assert prints(replace(report, findings=moved), folder)[0] != prints(report, folder)[0], "two files of one tree"


def test_equal_lines_have_numbered_fingerprints(report: Report):
    first = report.findings[0]
    one, two = prints(replace(report, findings=(first, first)))
    assert one.split(":")[0] == two.split(":")[0]
    assert (one[-2:], two[-2:]) == (":1", ":2")


def test_file_names_are_quoted(report: Report, tmp_path: Path):
    odd = replace(report.findings[0], location=SourceLocation("/a b/ü%\udcff.py", 1), related=())
    log = to_sarif(replace(report, findings=(odd,)), base=tmp_path)
    uri = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "file:///a%20b/%C3%BC%25%FF.py"


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("{base}/sub/../train.py", "train.py"),
        ("{base}/a:b %.py", "a%3Ab%20%25.py"),
        ("pkg/train.py", "pkg/train.py"),
        ("{base}/../other.py", None),
    ],
)
def test_paths_below_the_base_are_relative(path: str, uri: str | None, finding: Finding, tmp_path: Path):
    real = tmp_path / "real"
    real.mkdir()
    base = tmp_path / "link"
    base.symlink_to(real)
    for root in (base, real):
        site = SourceLocation(path.format(base=root), 1)
        log = to_sarif(Report(findings=(replace(finding, location=site, related=()),)), base=base)
        (result,) = log["runs"][0]["results"]
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        outside = {"uri": (tmp_path / "other.py").as_uri()}
        assert artifact == ({"uri": uri, "uriBaseId": "SRCROOT"} if uri else outside)


def test_the_error_that_ended_the_run_is_a_result(report: Report, error: ExplainedError, folder: Path):
    run = to_sarif(replace(report, error=error), base=folder)["runs"][0]
    result, rule = run["results"][0], run["tool"]["driver"]["rules"][0]
    assert (result["ruleId"], result["level"]) == ("raised/shape-mismatch", "error")
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 9
    lines = [each["physicalLocation"]["region"]["startLine"] for each in result["relatedLocations"]]
    assert lines == [8, 6]
    assert rule["help"]["text"] == error.fix


def test_a_lint_finding_has_columns_and_fix(finding: Finding, folder: Path):
    assert finding.location is not None
    fix = Fix((Edit(10, 10, "    é()\n"), Edit(20, 24, "")), safe=True, description="Call é")
    found = replace(finding, column=5, end=(finding.location.line + 1, 9), autofix=fix)
    log = to_sarif(Report(findings=(found,), files=1), base=folder)
    assert_valid(log)
    (result,) = log["runs"][0]["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    line = finding.location.line
    assert region == {"startLine": line, "startColumn": 5, "endLine": line + 1, "endColumn": 9}
    first, second = result["fixes"][0]["artifactChanges"][0]["replacements"]
    assert first == {"deletedRegion": {"byteOffset": 10, "byteLength": 0}, "insertedContent": {"text": "    é()\n"}}
    assert second["deletedRegion"] == {"byteOffset": 20, "byteLength": 4}


def test_a_notebook_cell_is_named_in_the_message(finding: Finding, folder: Path):
    site = SourceLocation(f"{folder}/nb.ipynb:cell 3", 2)
    found = replace(finding, location=site, related=((site, "here"),), cell=3, column=1, end=(2, 4))
    log = to_sarif(Report(findings=(found,), files=1), base=folder)
    assert_valid(log)
    (location,) = log["runs"][0]["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "nb.ipynb"
    assert location["message"]["text"] == "Cell 3, line 2."
