"""`trueloop run` behind its options: launch, live lines, the report of all ranks, files, and the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from trueloop.app.sanitizer.live_findings import LiveFindings
from trueloop.app.sanitizer.rank_reports import RankReports, rank_reports
from trueloop.app.sanitizer.report_output import ReportFiles, print_page
from trueloop.core.findings import Finding, Report, Severity
from trueloop.failures.selection import select_failures
from trueloop.sanitizer.launch import FINDINGS_EXIT_CODE, LaunchResult, launch
from trueloop.sanitizer.run_program import ProgramCommand

if TYPE_CHECKING:
    from trueloop.app.sanitizer.lab_feed import LabSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user asks for, as options of the command line."""

    json: Path | None = None
    """Write the report to this file as JSON."""
    html: Path | None = None
    """Write it as a page with plots."""
    sarif: Path | None = None
    """Write it as SARIF, for editors and CI."""
    strict: bool = False
    """Exit with 3 if a warning or error is found and the script itself ends with 0."""
    select: Sequence[str] = ()
    """Watch for these only: codes, families or slugs, with commas between them."""
    ignore: Sequence[str] = ()
    """Do not tell of these; they are counted."""
    stop_on_error: bool = False
    """End the script at the first certain error, with exit code 3."""
    quiet: bool = False
    """Print nothing; write the files and exit."""
    lab: bool = False
    """Show the run in the lab while it goes on, and print the page's address; a lab is started where none runs."""


def sanitize(program: ProgramCommand, wishes: RunOptions) -> int:
    """Run a program under the watch, tell what was found, and return the exit code.

    Raises:
        InvalidConfig: a wish that cannot be met, before the program starts.
        MissingExtra: the lab is wished for, and what it needs is not installed; before the program starts, too.
        RunFolderError: a file could not be written at the end; the report was printed.
    """
    base = Path.cwd()
    files = ReportFiles(json=wishes.json, html=wishes.html, sarif=wishes.sarif).checked_paths()
    choice = select_failures(wishes.select, wishes.ignore, folder=base)
    group, trouble = _enter(rank_reports(os.environ))
    page = _in_lab(program, base, group) if wishes.lab else None
    if page is not None and not (wishes.quiet or (group is not None and group.local)):
        _say(page.where)
    tell_live = _teller(base, group, wishes)
    ended = launch(
        program,
        choice,
        on_finding=page.also_to_lab(tell_live) if page else tell_live,
        stop_on_error=wishes.stop_on_error,
        observer=page.audience if page else None,
    )
    if ended.forked:
        return ended.code
    if page is not None:
        page.end(ended)
        trouble = (*trouble, *page.record_problem)
    found = False

    def tell(report: Report) -> None:
        nonlocal found
        found = report.highest_severity() not in (None, Severity.NOTE)
        _flush()
        if not wishes.quiet:
            _print(ended, report, base)
        files.write(report, base=base)

    report = replace(ended.report, problems=(*ended.report.problems, *trouble))
    try:
        if group is not None:
            group.merged_report(report, failed=ended.code != 0, tell=tell)
    except OSError:  # the disk is full, or the folder is gone: each one for itself
        group = None
    if group is None:
        tell(report)
    return FINDINGS_EXIT_CODE if wishes.strict and found and ended.code == 0 else ended.code


def _in_lab(program: ProgramCommand, base: Path, group: RankReports | None) -> LabSession:
    from trueloop.app.sanitizer.lab_feed import LabSession

    return LabSession.open(program, os.environ, base=base, group=group)


def _enter(group: RankReports | None) -> tuple[RankReports | None, tuple[str, ...]]:
    """Join the other ranks; where that fails, each one reports for itself."""
    try:
        if group is not None:
            group.write_marker()
    except OSError as error:
        return None, (f"the reports of the ranks are not merged: {error}",)
    return group, ()


def _teller(base: Path, group: RankReports | None, wishes: RunOptions) -> Callable[[Finding], None]:
    def silent(finding: Finding) -> None:
        return

    if wishes.quiet or (group is not None and group.local):
        return silent
    return LiveFindings(base, rank=group and group.rank).print_finding


def _print(ended: LaunchResult, report: Report, base: Path) -> None:
    if ended.nothing:
        _say(ended.nothing)
    else:
        print_page(report, base=base)


def _say(words: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"trueloop: {words}"))


def _flush() -> None:
    """Bring what the program printed to the terminal before the report."""
    try:
        if sys.stdout is not None:  # it was closed when Python began
            sys.stdout.flush()
    except (OSError, ValueError):  # the reader is gone, or the program has closed it
        return
