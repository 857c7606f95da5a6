from dataclasses import replace
from pathlib import Path

from trueloop.core.findings import Finding, Severity, SourceLocation
from trueloop.core.source_text import Edit, Fix
from trueloop.reporting.one_line import format_annotation, format_concise, format_statistics

FOUND = Finding(
    code="GRD001",
    slug="never-cleared",
    title="Gradients are never cleared",
    severity=Severity.WARNING,
    message="50 % of it:\nhere, it is.",
    location=SourceLocation("/w/a,b.py", 3),
    column=5,
    end=(4, 7),
    fix="Do it.",
)
BASE = Path("/w")


def test_concise_format_has_location_message_and_fix_mark():
    assert format_concise(FOUND, base=BASE).startswith("a,b.py:3:5: GRD001 warning 50 % of it:")
    for safe, mark in ((True, " [*]"), (False, "")):
        fixable = replace(FOUND, autofix=Fix((Edit(0, 0, ""),), safe=safe))
        assert f"GRD001 warning{mark} 50" in format_concise(fixable, base=BASE)


def test_annotations_are_escaped_for_github():
    assert format_annotation(FOUND, base=BASE) == (
        "::warning file=a%2Cb.py,line=3,title=GRD001 Gradients are never cleared,col=5,endLine=4,endColumn=7"
        "::50 %25 of it: here, it is. Do it."
    )
    note = replace(FOUND, severity=Severity.NOTE, location=SourceLocation("/w/n.ipynb:cell 3", 2))
    assert format_annotation(note, base=BASE).startswith(
        "::notice file=n.ipynb,title=GRD001 Gradients are never cleared (cell 3%2C line 2)::"
    )


def test_statistics_count_the_most_frequent_first():
    other = replace(FOUND, code="EVL001", slug="x", title="X")
    assert list(format_statistics([other, *[FOUND] * 10])) == [
        "10  GRD001       never-cleared: Gradients are never cleared",
        " 1  EVL001       x: X",
    ]
    assert list(format_statistics([])) == []
    for safe, mark in ((True, "[*]"), (False, "   ")):
        fixable = replace(FOUND, autofix=Fix((Edit(0, 0, ""),), safe=safe))
        assert list(format_statistics([fixable, FOUND])) == [
            f"2  GRD001  {mark}  never-cleared: Gradients are never cleared"
        ]
