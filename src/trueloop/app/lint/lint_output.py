"""Print the results of `trueloop lint` in the requested format."""

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
    """Results of the linter over all files."""

    findings: list[Finding] = field(default_factory=list[Finding])
    problems: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Paths of the files that could not be checked, each with the reason."""
    unused_pragmas: list[tuple[SourceLocation, str]] = field(default_factory=list[tuple[SourceLocation, str]])
    """Location and codes of each suppression comment that suppresses no finding."""
    used_pragmas: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Path and line of suppression comments that suppress a finding of another file's program."""
    baseline_keys: list[Key] = field(default_factory=list[Key])
    """Keys of all findings for a baseline."""
    files: int = 0
    """Number of linted files."""
    changed_files: int = 0
    """Number of files changed by fixes."""
    fixed_findings: int = 0
    """Number of findings fixed by --fix or --unsafe-fixes."""
    ignored_findings: int = 0
    """Number of findings suppressed by comments that --add-ignore wrote."""
    suppressed: int = 0
    """Number of findings suppressed by existing comments."""
    in_baseline: int = 0
    """Number of findings that the baseline lists."""

    def drop_used_pragmas(self) -> None:
        """Drop comments from the unused ones that suppress a finding of another file's program."""
        self.unused_pragmas = [each for each in self.unused_pragmas if each[0][:2] not in self.used_pragmas]

    def report(self) -> Report:
        """Return the results as a report, which has the same form as the report of a run."""
        return Report(
            findings=tuple(self.findings),
            files=self.files,
            suppressed=self.suppressed,
            problems=tuple(f"{path}: {problem}" for path, problem in self.problems),
        )


def print_results(
    summary: LintSummary,
    output_format: Format,
    *,
    base: Path,
    statistics: bool = False,
    quiet: bool = False,
    file: TextIO | None = None,
) -> None:
    """Print the results.

    Args:
        summary: the results.
        output_format: the format.
        base: folder that paths are relative to.
        statistics: True to print the number of findings per failure instead of the findings.
        quiet: True to omit the summary.
        file: output stream; None = standard output.
    """
    out = sys.stdout if file is None else file
    if output_format in ("json", "sarif"):
        print(json.dumps(_to_json(summary.report(), output_format, base), indent=2), file=out)
        return
    for path, problem in summary.problems:
        how = "not fully checked" if " was not judged: " in problem else "not checked"
        print(f"{format_path(path, base)}: {how}: {problem}", file=sys.stderr)
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


def _finding_lines(
    summary: LintSummary, output_format: Format, base: Path, *, statistics: bool, file: TextIO
) -> Iterator[str]:
    from trueloop.reporting import one_line

    if statistics:
        yield from one_line.format_statistics(summary.findings)
    elif output_format == "text":
        from rich.console import Console

        from trueloop.reporting.text import print_findings

        print_findings(summary.findings, Console(file=file, highlight=False), base=base)
    else:
        yield from (
            (one_line.format_annotation if output_format == "github" else one_line.format_concise)(each, base=base)
            for each in summary.findings
        )


def _summary_lines(summary: LintSummary, base: Path) -> Iterator[str]:
    yield (
        f"{headline(summary.report())}." if summary.files else "Nothing checked: no Python file and no notebook found."
    )
    changed = ((summary.fixed_findings, "fixed"), (summary.ignored_findings, "suppressed by a new comment"))
    hidden = ((summary.suppressed, "suppressed by comments"), (summary.in_baseline, "listed in the baseline"))
    fixes = [finding.autofix for finding in summary.findings if finding.autofix]
    safe_count = sum(fix.safe for fix in fixes)
    unsafe_count = len(fixes) - safe_count
    fixable = ((safe_count, "can be fixed by --fix"), (unsafe_count, "by --unsafe-fixes (review them with --diff)"))
    for counts in (changed, hidden, fixable):
        if sentence := _join_counts(counts):
            yield f"{sentence}."
    for location, codes in summary.unused_pragmas:
        pragma = f"ignore[{codes}]" if codes else "ignore"
        path_and_line = f"{format_path(location.path, base)}:{location.line}"
        yield f"{path_and_line}: `# trueloop: {pragma}` suppresses no finding of the linter."


def _join_counts(counts: Iterable[tuple[int, str]]) -> str:
    return ", ".join(f"{format_count(count, 'finding')} {adjective}" for count, adjective in counts if count)
