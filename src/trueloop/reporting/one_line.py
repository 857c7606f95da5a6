"""Formats each finding as one line, for the terminal or as a GitHub annotation."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from trueloop.core.findings import Finding, Severity
from trueloop.core.formatting import replace_unprintable, to_single_line
from trueloop.reporting.summary import format_path

GITHUB_COMMANDS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def format_concise(finding: Finding, *, base: Path) -> str:
    """Format a finding like a compiler error: "train.py:41:5: GRD001 error [*] ..."; ``[*]`` marks a safe fix."""
    mark = " [*]" if finding.autofix and finding.autofix.safe else ""
    return (
        f"{_format_location(finding, base)}: {finding.code} {finding.severity}{mark} {to_single_line(finding.message)}"
    )


def _format_location(finding: Finding, base: Path) -> str:
    if finding.location is None:
        return "?"
    return f"{format_path(finding.location.path, base)}:{finding.location.line}" + (
        f":{finding.column}" if finding.column else ""
    )


def format_annotation(finding: Finding, *, base: Path) -> str:
    """Format a finding as a GitHub workflow command, which annotates the finding's line."""
    location = finding.location
    parts = {"title": f"{finding.code} {finding.title}"}
    if location is not None:
        path, _, cell = format_path(location.path, base).partition(":cell ")
        parts = {"file": path, "line": str(location.line), **parts}
        if cell:
            parts.pop("line")  # a line of a cell is not a line of the file
            parts["title"] += f" (cell {cell}, line {location.line})"
        elif finding.column and finding.end:
            parts |= {"col": str(finding.column), "endLine": str(finding.end[0]), "endColumn": str(finding.end[1])}
    properties = ",".join(f"{name}={_escape(value, in_name=True)}" for name, value in parts.items())
    message = _escape(f"{to_single_line(finding.message)} {finding.fix}".strip(), in_name=False)
    return f"::{GITHUB_COMMANDS[finding.severity]} {properties}::{message}"


def _escape(text: str, *, in_name: bool) -> str:
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *(((":", "%3A"), (",", "%2C")) if in_name else ())):
        text = text.replace(sign, code)
    return text


def format_statistics(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the number of findings per failure, most frequent first: "  12  GRD001  [*]  never-cleared"."""
    findings = list(findings)
    counts = Counter(finding.code for finding in findings)
    width = len(str(max(counts.values(), default=0)))
    examples = {finding.code: finding for finding in findings}
    fixable = {finding.code for finding in findings if finding.autofix and finding.autofix.safe}
    for code, count in counts.most_common():
        mark = "[*]" if code in fixable else "   "
        yield f"{count:>{width}}  {code}  {mark}  {examples[code].slug}: {replace_unprintable(examples[code].title)}"
