from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trueloop.core.findings import Finding, Severity, SourceLocation, SuggestedChange
from trueloop.core.source_text import Edit, Fix
from trueloop.reporting.excerpt import DiffLine, diff_lines, excerpts, fix_diff


def numbers(finding: Finding) -> list[list[int | None]]:
    return [[line and line.number for line in excerpt.lines] for excerpt in excerpts(finding)]


def test_an_excerpt_shows_context_and_related_lines(finding: Finding):
    (excerpt,) = excerpts(finding)
    lines = [line for line in excerpt.lines if line]
    assert [line.number for line in lines] == [9, 10, 11, 12, 13]
    assert [(line.number, note.text, note.is_primary) for line in lines for note in line.notes] == [
        (10, "added here", False),
        (11, "", True),
    ]
    assert lines[-1].text == "return history", "the indentation they share is left out"


def test_a_comment_is_not_underlined(finding: Finding):
    (excerpt,) = excerpts(finding)
    line = next(line for line in excerpt.lines if line and line.number == 11)
    start, end = line.code
    assert line.text[start:end] == "optimizer.step()"


def test_distant_lines_are_separated_by_a_gap(finding: Finding):
    path = finding.location.path if finding.location else ""
    assert numbers(replace(finding, related=((SourceLocation(path, 2), "here"),))) == [[1, 2, None, 9, 10, 11, 12, 13]]
    near = replace(finding, related=((SourceLocation(path, 6), "here"),))
    assert numbers(near) == [[5, 6, 7, 8, 9, 10, 11, 12, 13]], "one line is shown rather than a gap in its place"


def test_each_file_has_an_excerpt_and_a_missing_file_line_numbers(finding: Finding, tmp_path: Path):
    gone = replace(finding, related=((SourceLocation(str(tmp_path / "gone.py"), 7), "made here"),))
    (_, other) = excerpts(gone)
    assert [(line.number, line.text) for line in other.lines if line] == [(7, "")]


def test_a_finding_without_location_has_no_excerpt(finding: Finding):
    assert excerpts(replace(finding, location=None, related=())) == []


@pytest.mark.parametrize("line", [0, 10**6])
def test_a_line_outside_the_file_is_harmless(finding: Finding, line: int):
    path = finding.location.path if finding.location else ""
    (excerpt,) = excerpts(replace(finding, location=SourceLocation(path, line), related=()))
    assert line in [each.number for each in excerpt.lines if each]


@pytest.mark.parametrize(
    ("where", "signs"),
    [
        ("before", ["+ optimizer.zero_grad()", "  loss.backward()"]),
        ("after", ["  loss.backward()", "+ optimizer.zero_grad()"]),
        ("instead", ["- loss.backward()", "+ optimizer.zero_grad()"]),
    ],
)
def test_a_suggested_change_is_a_diff(finding: Finding, where: str, signs: list[str]):
    assert finding.change is not None
    assert [f"{each.sign} {each.text}" for each in diff_lines(finding.change._replace(position=where))] == signs


def test_a_multiline_change_keeps_relative_indentation(finding: Finding):
    assert finding.change is not None
    change = finding.change._replace(text="with torch.no_grad():\n    evaluate(model)")
    assert [each.text for each in diff_lines(change)] == [
        "with torch.no_grad():",
        "    evaluate(model)",
        "loss.backward()",
    ]


def test_a_change_of_a_missing_file_shows_the_new_lines():
    assert [tuple(each) for each in diff_lines(SuggestedChange(SourceLocation("gone.py", 3), "x = 1"))] == [
        ("+", "x = 1")
    ]


def test_a_byte_fix_is_shown_as_a_diff(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(b"\xef\xbb\xbfif x:\r\n\tf(1)  # \xc3\xa9\r\n\tg()\r\n")
    at = path.read_bytes().index(b"1")
    found = Finding(
        code="GRD001",
        slug="s",
        title="t",
        severity=Severity.ERROR,
        message="m.",
        location=SourceLocation(str(path), 2),
        autofix=Fix((Edit(at, at + 1, "2"),), safe=True),
    )
    assert fix_diff(found) == [DiffLine("-", "f(1)  # é"), DiffLine("+", "f(2)  # é")]
    assert fix_diff(replace(found, cell=1)) == []
    assert fix_diff(replace(found, location=SourceLocation("gone.py", 1))) == []
    assert fix_diff(replace(found, autofix=None)) == []
    start = Fix((Edit(3, 5, "if not"),), safe=True)
    assert fix_diff(replace(found, autofix=start)) == [DiffLine("-", "if x:"), DiffLine("+", "if not x:")]
    many = Fix((Edit(0, 0, "x\n" * 20),), safe=True)
    assert fix_diff(replace(found, autofix=many)) == []
