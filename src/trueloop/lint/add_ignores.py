"""Adds suppression comments for all findings, to adopt the linter on an old code base."""

import re
from collections import defaultdict
from collections.abc import Iterable

from trueloop.core.findings import Finding
from trueloop.core.source_text import Edit, Fix, SourceText, apply_fixes
from trueloop.core.suppression import statement_spans

_CODE_LIST = re.compile(r"(#\s*trueloop:\s*ignore\[)([^\]]*)(\])")


def add_ignore_comments(source: str, findings: Iterable[Finding]) -> tuple[str, int]:
    """Return the text with a suppression comment at the end of each finding's statement, and the number of findings."""
    codes_by_line: dict[int, set[str]] = defaultdict(set)
    spans = [(first, last) for first, last, _ in statement_spans(source) if first]
    count = 0
    for finding in findings:
        if finding.location is not None:
            line = finding.location.line
            last = next((last for first, last in spans if first <= line <= last), line)
            codes_by_line[last].add(finding.code)
            count += 1
    text = SourceText(source)
    edits = [_pragma_edit(text, line, codes) for line, codes in codes_by_line.items()]
    return apply_fixes(text, [Fix((edit,), safe=True) for edit in edits])[0].source, count


def _pragma_edit(text: SourceText, line: int, codes: set[str]) -> Edit:
    """Return the edit that adds codes to the suppression comment of a line, or adds such a comment."""
    content = text.line(line)
    start = text.offset(line, 0)
    lists = list(_CODE_LIST.finditer(content))
    if not lists:
        end = start + len(content.rstrip().encode())
        return Edit(end, end, f"  # trueloop: ignore[{', '.join(sorted(codes))}]")
    last = lists[-1]  # earlier matches may be inside a string
    all_codes = {word.strip() for word in last[2].split(",") if word.strip()} | codes
    begin, end = (start + len(content[:position].encode()) for position in last.span(2))
    return Edit(begin, end, ", ".join(sorted(all_codes)))
