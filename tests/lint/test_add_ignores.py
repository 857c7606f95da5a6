import ast

from trueloop.core.findings import Finding, Severity, SourceLocation
from trueloop.core.suppression import ignored_codes
from trueloop.lint.add_ignores import add_ignore_comments


def at(line, code="GRD001"):
    return Finding(
        code=code, slug="s", title="t", severity=Severity.ERROR, message="m.", location=SourceLocation("a.py", line)
    )


def test_every_finding_gets_a_suppression_comment():
    source = 'f(\n    1,\n    2)  # why\ng("#")   # trueloop: ignore[EVL001]\nh()\n'
    text, count = add_ignore_comments(source, [at(1), at(2, "MEM001"), at(4), at(4, "EVL001")])
    assert count == 4
    ast.parse(text)
    assert text.splitlines()[2] == "    2)  # why  # trueloop: ignore[GRD001, MEM001]"
    assert text.splitlines()[3] == 'g("#")   # trueloop: ignore[EVL001, GRD001]'
    found = ignored_codes(text)
    assert {"GRD001", "MEM001"} <= found[1]
    assert {"GRD001", "EVL001"} <= found[4]
    assert add_ignore_comments(text, [at(1), at(2, "MEM001"), at(4)])[0] == text


def test_line_ends_and_end_of_file_are_kept():
    assert add_ignore_comments("f()\r\ng()", [at(2)])[0] == "f()\r\ng()  # trueloop: ignore[GRD001]"
