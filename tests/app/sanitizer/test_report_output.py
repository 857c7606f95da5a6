"""A report on the terminal, as text, as a page and in files."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trueloop.app.sanitizer.report_output import ReportFiles, format_html, format_text, print_page
from trueloop.core.errors import InvalidConfig, RunFolderError
from trueloop.core.findings import Finding, Report, Severity, SourceLocation


def finding(severity: Severity) -> Finding:
    return Finding(
        code="GRD001",
        slug="never-cleared",
        title="Gradients are never cleared",
        severity=severity,
        message="4 gradients were used [bold]twice[/bold].",
        location=None,
        fix="Clear them.",
    )


REPORT = Report(findings=(finding(Severity.ERROR),))


def test_it_is_printed_on_standard_error(capsys: pytest.CaptureFixture[str]):
    print_page(REPORT, base=Path())
    out, err = capsys.readouterr()
    assert not out
    assert "GRD001" in err
    assert "[bold]twice[/bold]" in err
    assert format_text(REPORT, base=Path()) == err


def test_a_closed_stream_is_no_error():
    closed = io.StringIO()
    closed.close()
    print_page(REPORT, file=closed, base=Path())


def test_an_internal_error_is_printed_with_the_verdict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "trueloop.reporting.text", None)
    assert format_text(REPORT, base=Path()).startswith(
        "trueloop: 1 error: no update was seen (the report could not be printed: "
    )


def test_all_files_are_written_after_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    files = ReportFiles(json=Path("r.json"), html=Path("r.html"), sarif=Path("r.sarif")).checked_paths()
    monkeypatch.chdir("/")
    files.write(REPORT, base=tmp_path)
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["schema"] == 1
    assert [each["code"] for each in written["findings"]] == ["GRD001"]
    assert (tmp_path / "r.html").read_text() == format_html(REPORT, base=tmp_path)
    assert "GRD001" in format_html(REPORT, base=tmp_path)
    assert json.loads((tmp_path / "r.sarif").read_text())["version"] == "2.1.0"


def test_paths_are_relative_in_pages_and_absolute_in_json(tmp_path: Path):
    found = replace(finding(Severity.ERROR), location=SourceLocation(str(tmp_path / "sub" / "train.py"), 3))
    files = ReportFiles(json=tmp_path / "r.json", html=tmp_path / "r.html", sarif=tmp_path / "r.sarif")
    files.write(Report(findings=(found,)), base=tmp_path)
    assert json.loads((tmp_path / "r.json").read_text())["findings"][0]["path"] == str(tmp_path / "sub" / "train.py")
    assert "<code>sub/train.py:3</code>" in (tmp_path / "r.html").read_text()
    assert '"uri": "sub/train.py"' in (tmp_path / "r.sarif").read_text()


def test_only_requested_files_are_written(tmp_path: Path):
    ReportFiles(json=tmp_path / "r.json").write(REPORT, base=tmp_path)
    ReportFiles().write(REPORT, base=tmp_path)
    assert os.listdir(tmp_path) == ["r.json"]


def test_an_unwritable_path_is_reported_before_the_run(tmp_path: Path):
    for path in (tmp_path / "missing" / "r.json", tmp_path):
        with pytest.raises(InvalidConfig, match="cannot be written to"):
            ReportFiles(json=path).checked_paths()


def test_a_removed_folder_is_reported_after_the_run(tmp_path: Path):
    folder = tmp_path / "there"
    folder.mkdir()
    files = ReportFiles(html=folder / "r.html").checked_paths()
    folder.rmdir()
    with pytest.raises(RunFolderError, match="could not be written"):
        files.write(REPORT, base=tmp_path)
