from __future__ import annotations

import json
import linecache
from dataclasses import replace
from pathlib import Path

from trueloop.engines.report.sarif import FINGERPRINT, to_sarif
from trueloop.ground.findings import Explained, Report, Site


def prints(report: Report) -> list[str]:
    return [result["partialFingerprints"][FINGERPRINT] for result in to_sarif(report)["runs"][0]["results"]]


def test_the_log_has_rules_levels_and_places(report: Report, folder: Path):
    log = json.loads(json.dumps(to_sarif(report, base=folder)))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [(rule["id"], rule["name"]) for rule in rules] == [
        ("GRD001", "NeverCleared"), ("MEM001", "GraphKept"), ("ENV001", "Starved"),
    ]  # fmt: skip
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
    first, _, last = run["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "train.py", "uriBaseId": "SRCROOT"}, "region": {"startLine": 11}}
    assert first["relatedLocations"][0]["message"] == {"text": "added here"}
    assert "locations" not in last
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == f"{folder.as_uri()}/"
    assert "loaders.py" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_a_fingerprint_does_not_move_with_its_line(report: Report, folder: Path):
    before = prints(report)
    path = folder / "train.py"
    path.write_text("# one line more\n" + path.read_text())
    linecache.clearcache()
    moved = tuple(
        replace(each, site=each.site._replace(line=each.site.line + 1)) if each.site else each
        for each in report.findings
    )
    assert prints(replace(report, findings=moved)) == before
    path.write_text(path.read_text().replace("optimizer.step()", "opt.step()"))
    linecache.clearcache()
    assert prints(replace(report, findings=moved))[0] != before[0]


def test_equal_lines_are_told_apart_by_their_order(report: Report):
    first = report.findings[0]
    one, two = prints(replace(report, findings=(first, first)))
    assert one.split(":")[0] == two.split(":")[0]
    assert (one[-2:], two[-2:]) == (":1", ":2")


def test_names_of_files_are_quoted(report: Report, tmp_path: Path):
    odd = replace(report.findings[0], site=Site("/a b/ü%\udcff.py", 1), related=())
    log = to_sarif(replace(report, findings=(odd,)), base=tmp_path)
    uri = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "file:///a%20b/%C3%BC%25%FF.py"


def test_what_ended_the_run_is_a_result(report: Report, error: Explained, folder: Path):
    run = to_sarif(replace(report, error=error), base=folder)["runs"][0]
    result, rule = run["results"][0], run["tool"]["driver"]["rules"][0]
    assert (result["ruleId"], result["level"]) == ("raised/shape-mismatch", "error")
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 9
    lines = [each["physicalLocation"]["region"]["startLine"] for each in result["relatedLocations"]]
    assert lines == [8, 6]
    assert rule["help"]["text"] == error.fix
