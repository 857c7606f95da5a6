"""Findings printed in two lines: the stream, the number of prints, and streams that fail."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trueloop.app.sanitizer.live_findings import MAX_FINDINGS, LiveFindings
from trueloop.core.findings import Finding, Severity, SourceLocation


def finding(line: int = 41, severity: Severity = Severity.ERROR, **fields: Any) -> Finding:
    defaults: dict[str, Any] = {
        "code": "GRD001",
        "slug": "never-cleared",
        "title": "Gradients are never cleared",
        "severity": severity,
        "message": "4 gradients were\nused [twice].",
        "location": SourceLocation("/project/train.py", line),
        "fix": "Call optimizer.zero_grad().",
    }
    return Finding(**{**defaults, **fields})


BASE = Path("/project")


def test_a_finding_is_two_lines(capsys: pytest.CaptureFixture[str]):
    LiveFindings(BASE).print_finding(finding())
    assert capsys.readouterr() == (
        "",
        "trueloop: error GRD001 train.py:41: 4 gradients were used [twice].\n  fix: Call optimizer.zero_grad().\n",
    )


def test_a_line_is_never_wrapped(capsys: pytest.CaptureFixture[str]):
    LiveFindings(BASE).print_finding(finding(message="long " * 100))
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_finding_without_line_and_fix_names_the_rank(capsys: pytest.CaptureFixture[str]):
    LiveFindings(BASE, rank=3).print_finding(finding(location=None, fix="", severity=Severity.WARNING))
    assert capsys.readouterr().err == "trueloop rank 3: warning GRD001: 4 gradients were used [twice].\n"


def test_each_line_is_printed_once_and_notes_only_in_the_report(capsys: pytest.CaptureFixture[str]):
    live = LiveFindings(BASE)
    for each in (finding(), finding(message="again"), finding(line=42), finding(line=43, severity=Severity.NOTE)):
        live.print_finding(each)
    assert [line.split(":")[2] for line in capsys.readouterr().err.splitlines()[::2]] == ["41", "42"]


def test_the_number_of_printed_findings_is_bounded(capsys: pytest.CaptureFixture[str]):
    live = LiveFindings(BASE)
    for line in range(50):
        live.print_finding(finding(line, fix=""))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_FINDINGS + 1
    assert lines[-1] == "trueloop: more findings are in the report"


def test_redirected_output_is_unchanged(capsys: pytest.CaptureFixture[str]):
    live = LiveFindings(BASE)
    redirected = io.StringIO()
    with contextlib.redirect_stderr(redirected):
        live.print_finding(finding())
    assert redirected.getvalue() == ""
    assert "GRD001" in capsys.readouterr().err


def test_it_is_written_above_a_progress_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    class Bars:
        _instances: tuple[Any, ...] = ()
        written: list[tuple[str, Any]] = []  # noqa: RUF012

        @classmethod
        def write(cls, text: str, file: Any) -> None:
            cls.written.append((text, file))

    module = ModuleType("tqdm")
    module.__dict__["tqdm"] = Bars
    monkeypatch.setitem(sys.modules, "tqdm", module)
    live = LiveFindings(BASE)
    live.print_finding(finding(fix=""))
    assert "train.py:41" in capsys.readouterr().err
    monkeypatch.setattr(Bars, "_instances", (1,))
    live.print_finding(finding(42, fix=""))
    assert capsys.readouterr().err == ""
    ((text, file),) = Bars.written
    assert text == "trueloop: error GRD001 train.py:42: 4 gradients were used [twice]."
    assert file is sys.stderr


def test_a_closed_or_limited_terminal_is_no_error(monkeypatch: pytest.MonkeyPatch):
    closed = io.StringIO()
    closed.close()
    poor = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    for stream in (closed, poor, None):
        monkeypatch.setattr(sys, "stderr", stream)
        LiveFindings(BASE).print_finding(finding(message="schön"))
    assert b"sch?n" in poor.buffer.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_custom_stream_may_only_have_write(monkeypatch: pytest.MonkeyPatch):
    """As one that copies everything into a file; what is raised here would dismiss a detector."""

    class Tee:
        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    tee = Tee()
    monkeypatch.setattr(sys, "stderr", tee)
    LiveFindings(BASE).print_finding(finding())
    assert tee.text.startswith("trueloop: error GRD001")
