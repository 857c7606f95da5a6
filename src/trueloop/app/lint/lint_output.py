"""What `trueloop lint` says: the findings in the form asked for, and what all files come to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from trueloop.core.findings import Finding, Report, SourceLocation
from trueloop.core.formatting import format_count
from trueloop.lint.baseline import Key
from trueloop.reporting.summary import format_path, headline

Format = Literal["text", "concise", "json", "github", "sarif"]
__all__ = ["Format", "LintSummary", "format_path", "print_results"]


@dataclass(slots=True, kw_only=True)
class LintSummary:
    """What all files come to."""

    findings: list[Finding] = field(default_factory=list[Finding])
    problems: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Files that were not judged, and why."""
    unused_pragmas: list[tuple[SourceLocation, str]] = field(default_factory=list[tuple[SourceLocation, str]])
    """Comments that silence nothing: file, line, codes."""
    baseline_keys: list[Key] = field(default_factory=list[Key])
    """What a baseline would list."""
    files: int = 0
    changed_files: int = 0
    """Files with fixes in them."""
    fixed_findings: int = 0
    ignored_findings: int = 0
    """Findings that were silenced by a comment just now."""
    suppressed: int = 0
    """Those that were before."""
    in_baseline: int = 0
    """Findings that the baseline lists."""

    def report(self) -> Report:
        """Return it as a report like that of a run."""
        return Report(
            findings=tuple(self.findings),
            files=self.files,
            suppressed=self.suppressed,
            problems=tuple(f"{path}: {problem}" for path, problem in self.problems),
        )


def print_results(
    summary: LintSummary, output_format: Format, *, base: Path, statistics: bool = False, quiet: bool = False, file: TextIO | None = None
) -> None:
    """Print what was found.

    Args:
        total: of all files.
        form: for people or for programs.
        base: paths are told relative to it.
        statistics: how often each failure was found, instead of the findings.
        quiet: no summary.
        file: None = standard output.
    """
    out = sys.stdout if file is None else file
    if output_format in ("json", "sarif"):
        print(json.dumps(_to_json(summary.report(), output_format, base), indent=2), file=out)
        return
    for path, problem in summary.problems:
        print(f"{format_path(path, base)}: not judged: {problem}", file=sys.stderr)
    for line in _finding_lines(summary, output_format, base, statistics=statistics, file=out):
        print(line, file=out)
    if not quiet and output_format in ("text", "concise"):
        for line in _summary_lines(summary, base):
            print(line, file=out if output_format == "text" else sys.stderr)


def _to_json(report: Report, output_format: Format, base: Path) -> dict[str, Any]:
    if output_format == "json":
        from trueloop.reporting.json_report import to_json

        return to_json(report)
    from trueloop.reporting.sarif import to_sarif

    return to_sarif(report, base=base)


def _finding_lines(summary: LintSummary, output_format: Format, base: Path, *, statistics: bool, file: TextIO) -> Iterator[str]:
    from trueloop.reporting import one_line

    if statistics:
        yield from one_line.format_statistics(summary.findings)
    elif output_format == "text":
        from rich.console import Console

        from trueloop.reporting.text import print_findings

        print_findings(summary.findings, Console(file=file, highlight=False), base=base)
    else:
        yield from (
            (one_line.format_annotation if output_format == "github" else one_line.format_concise)(each, base=base) for each in summary.findings
        )


def _summary_lines(summary: LintSummary, base: Path) -> Iterator[str]:
    yield f"{headline(summary.report())}." if summary.files else "Not judged: there is no Python file and no notebook."
    done = ((summary.fixed_findings, "fixed"), (summary.ignored_findings, "silenced by a comment"))
    quiet = ((summary.suppressed, "silenced by comments"), (summary.in_baseline, "known to the baseline"))
    repairs = [finding.autofix for finding in summary.findings if finding.autofix]
    safe = sum(repair.safe for repair in repairs)
    ways = ((safe, "can be fixed by --fix"), (len(repairs) - safe, "by --unsafe-fixes (look at them: add --diff)"))
    for parts in (done, quiet, ways):
        if words := _join_counts(parts):
            yield f"{words}."
    for site, codes in summary.unused_pragmas:
        what = f"ignore[{codes}]" if codes else "ignore"
        yield f"{format_path(site.path, base)}:{site.line}: `# trueloop: {what}` silences nothing that the text shows."


def _join_counts(parts: Iterable[tuple[int, str]]) -> str:
    return ", ".join(f"{format_count(count, 'finding')} {words}" for count, words in parts if count)
