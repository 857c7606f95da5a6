"""Format each finding as one line, for the terminal or as a GitHub annotation."""

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
    location = finding.location
    position = f"{format_path(location.path, base)}:{location.line}" if location else "?"
    column = f":{finding.column}" if location and finding.column else ""
    mark = " [*]" if finding.autofix and finding.autofix.safe else ""
    return f"{position}{column}: {finding.code} {finding.severity}{mark} {to_single_line(finding.message)}"


def format_annotation(finding: Finding, *, base: Path) -> str:
    """Format a finding as a GitHub workflow command, which annotates the finding's line."""
    location = finding.location
    properties = {"title": f"{finding.code} {finding.title}"}
    if location is not None:
        path, _, cell = format_path(location.path, base).partition(":cell ")
        properties = {"file": path, "line": str(location.line), **properties}
        if cell:
            properties.pop("line")  # a line of a cell is not a line of the file
            properties["title"] += f" (cell {cell}, line {location.line})"
        elif finding.column and finding.end:
            last_line, last_column = finding.end
            properties |= {"col": str(finding.column), "endLine": str(last_line), "endColumn": str(last_column)}
    escaped = (f"{name}={_escape(text).replace(':', '%3A').replace(',', '%2C')}" for name, text in properties.items())
    message = _escape(f"{to_single_line(finding.message)} {finding.fix}".strip())
    return f"::{GITHUB_COMMANDS[finding.severity]} {','.join(escaped)}::{message}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


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
