"""Adds suppression comments for all findings, to adopt the linter on an old code base."""

import re
from collections import defaultdict
from collections.abc import Iterable

from trueloop.core.findings import Finding
from trueloop.core.source_text import Edit, Fix, SourceText, apply_fixes
from trueloop.core.suppression import statement_spans

_CODE_LIST = re.compile(r"(#\s*trueloop:\s*ignore\[)([^\]]*)(\])")


def add_ignore_comments(source: str, findings: Iterable[Finding]) -> tuple[str, int]:
    """Return the text with a suppression comment at the end of the statement of each finding, and their number."""
    wanted: dict[int, set[str]] = defaultdict(set)
    spans = [(first, last) for first, last, _ in statement_spans(source) if first]
    count = 0
    for finding in findings:
        if finding.location is not None:
            line = finding.location.line
            last = next((last for first, last in spans if first <= line <= last), line)
            wanted[last].add(finding.code)
            count += 1
    text = SourceText(source)
    edits = [_pragma_edit(text, line, codes) for line, codes in wanted.items()]
    return apply_fixes(text, [Fix((edit,), safe=True) for edit in edits])[0].source, count


def _pragma_edit(text: SourceText, line: int, codes: set[str]) -> Edit:
    """Return the edit that adds codes to the comment of a line, or adds a comment."""
    words = text.line(line)
    start = text.offset(line, 0)
    lists = list(_CODE_LIST.finditer(words))
    if not lists:
        end = start + len(words.rstrip().encode())
        return Edit(end, end, f"  # trueloop: ignore[{', '.join(sorted(codes))}]")
    known = lists[-1]  # earlier ones may be in a string
    listed = {word.strip() for word in known[2].split(",") if word.strip()} | codes
    begin, end = (start + len(words[:at].encode()) for at in known.span(2))
    return Edit(begin, end, ", ".join(sorted(listed)))
