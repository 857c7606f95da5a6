"""Run `trueloop run`: launch the program, print findings, merge reports, write files, return the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.text import Text

from trueloop.app.sanitizer.live_findings import LiveFindings
from trueloop.app.sanitizer.rank_reports import RankReports, rank_reports
from trueloop.app.sanitizer.report_output import ReportFiles, print_page
from trueloop.core.findings import Finding, Report, Severity
from trueloop.failures.selection import FailureSelection, select_failures
from trueloop.sanitizer.launch import FINDINGS_EXIT_CODE, LaunchResult, launch
from trueloop.sanitizer.run_program import ProgramCommand

if TYPE_CHECKING:
    from trueloop.app.sanitizer.lab_feed import LabSession


INTERRUPTED: Final = 130  # exit code after Ctrl-C


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The command line options of `trueloop run`."""

    json: Path | None = None
    """Write the report to this file as JSON."""
    html: Path | None = None
    """Write the report to this file as HTML with plots."""
    sarif: Path | None = None
    """Write the report to this file as SARIF, for editors and CI."""
    strict: bool = False
    """Exit with 3 if a warning or error is found and the script itself ends with 0."""
    select: Sequence[str] = ()
    """Watch only for these codes, families or slugs, separated by commas."""
    ignore: Sequence[str] = ()
    """Do not report these codes, families or slugs, separated by commas; only count them."""
    stop_on_error: bool = False
    """End the script at the first error, with exit code 3."""
    verbose: bool = False
    """Also print why failures were not judged, and where the time of an update goes."""
    quiet: bool = False
    """Print nothing; only write the files."""
    lab: bool = False
    """Show the run in the lab while it runs, and print the page's address; starts a lab if none runs."""


class SanitizedRun(NamedTuple):
    """A program that was run, and whose report was printed."""

    code: int
    """The exit code."""
    report: Report
    forked: bool
    """Whether this process is a child that the program forked, whose parent reports."""


def sanitize(program: ProgramCommand, options: RunOptions) -> int:
    """Run a program as `run_sanitized` does, and return the exit code."""
    return run_sanitized(program, options).code


def run_sanitized(program: ProgramCommand, options: RunOptions) -> SanitizedRun:
    """Run a program under the sanitizer, print its report, and return the exit code with the report.

    Raises:
        InvalidConfig: an option is invalid; raised before the program starts.
        MissingExtra: packages for the lab are not installed; raised before the program starts.
        RunFolderError: a file could not be written; raised at the end, after the report was printed.
    """
    base = Path.cwd()
    files = ReportFiles(json=options.json, html=options.html, sarif=options.sarif).checked_paths()
    selection = select_failures(options.select, options.ignore, folder=base)
    group, problems = _join_group(rank_reports(os.environ))
    lab = _open_lab(program, base, group) if options.lab else None
    is_silent = options.quiet or (group is not None and group.local_rank > 0)
    if lab is not None and not is_silent:
        _print_line(lab.notice)
    print_finding = _ignore_finding if is_silent else LiveFindings(base, rank=group and group.rank).print_finding
    result = launch(
        program,
        selection,
        on_finding=lab.print_and_send(print_finding) if lab else print_finding,
        stop_on_error=options.stop_on_error,
        observer=lab.writer if lab else None,
    )
    if result.forked:
        return SanitizedRun(result.code, result.report, forked=True)
    if lab is not None:
        lab.end(result)
        problems = (*problems, *lab.problems)
    has_findings = False

    def print_report(report: Report) -> None:
        nonlocal has_findings
        has_findings = report.highest_severity() not in (None, Severity.NOTE)
        _flush()
        if not options.quiet:
            _print_report(result, report, base, verbose=options.verbose)
        files.write(report, base=base)

    report = replace(result.report, problems=(*result.report.problems, *problems))
    if not result.not_judged_reason and result.code != INTERRUPTED and (group is None or not group.rank):
        report = _with_lint_findings(report, selection)
    try:
        if group is not None:
            group.print_or_send(report, failed=result.code != 0, print_report=print_report)
    except OSError:  # the disk is full, or the folder is gone: each rank prints its own report
        group = None
    if group is None:
        print_report(report)
    code = FINDINGS_EXIT_CODE if options.strict and has_findings and result.code == 0 else result.code
    return SanitizedRun(code, report, forked=False)


def _with_lint_findings(report: Report, selection: FailureSelection) -> Report:
    from trueloop.app.sanitizer.program_lint import add_lint_findings

    return add_lint_findings(report, selection)


def _open_lab(program: ProgramCommand, base: Path, group: RankReports | None) -> LabSession:
    from trueloop.app.sanitizer.lab_feed import LabSession

    return LabSession.open(program, os.environ, base=base, group=group)


def _join_group(group: RankReports | None) -> tuple[RankReports | None, tuple[str, ...]]:
    """Join the other ranks to merge the reports; return None and the problem if this fails."""
    try:
        if group is not None:
            group.write_marker()
    except OSError as error:
        return None, (f"the reports of the ranks are not merged: {error}",)
    return group, ()


def _ignore_finding(finding: Finding) -> None:
    """Do nothing: the report has all findings."""


def _print_report(result: LaunchResult, report: Report, base: Path, *, verbose: bool) -> None:
    if result.not_judged_reason:
        _print_line(result.not_judged_reason)
    else:
        print_page(report, base=base, verbose=verbose)


def _print_line(message: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"trueloop: {message}"))


def _flush() -> None:
    """Flush the program's output, so that it appears before the report."""
    try:
        if sys.stdout is not None:  # None if it was closed when Python started
            sys.stdout.flush()
    except (OSError, ValueError):  # the pipe is closed, or the program has closed it
        return
