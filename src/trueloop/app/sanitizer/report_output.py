"""Print a report on the terminal, and write it to files."""

from __future__ import annotations

import io
import json as json_format
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from trueloop.app.output_file import check_writable, write_output
from trueloop.core.findings import Report
from trueloop.reporting.json_report import to_json
from trueloop.reporting.summary import headline


def print_page(report: Report, *, file: TextIO | None = None, base: Path, verbose: bool = False) -> None:
    """Print a report on standard error, or to a file; nothing is printed to a closed stream.

    If an internal error prevents printing, only the headline and that error are printed. No exception is raised, since
    this runs at the end of the user's program.
    """
    console = Console(file=file or sys.stderr, highlight=False)
    try:
        try:
            from trueloop.reporting.text import print_report

            print_report(report, console, base=base, verbose=verbose)
        except (AttributeError, ImportError, LookupError, TypeError) as error:
            console.print(
                Text(f"trueloop: {headline(report)} (the report could not be printed: {type(error).__name__}: {error})")
            )
    except (OSError, ValueError):  # the terminal or pipe is closed
        return


def format_text(report: Report, *, base: Path) -> str:
    """Return the printed text of a report, without colours."""
    file = io.StringIO()
    print_page(report, file=file, base=base)
    return file.getvalue()


def format_html(report: Report, *, base: Path) -> str:
    """Return a report as an HTML page."""
    from trueloop.reporting.html import to_html

    return to_html(report, base=base)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Paths of the files that a report is written to; None = the file is not written."""

    json: Path | None = None
    html: Path | None = None
    sarif: Path | None = None

    def checked_paths(self) -> ReportFiles:
        """Return the paths as absolute paths, because the program may change its working directory.

        Raises:
            InvalidConfig: a path is not writable; it is better to know this before a run of hours.
        """
        return ReportFiles(
            json=self.json and check_writable(self.json, "report"),
            html=self.html and check_writable(self.html, "report"),
            sarif=self.sarif and check_writable(self.sarif, "report"),
        )

    def write(self, report: Report, *, base: Path) -> None:
        """Write the requested files.

        Args:
            report: the report of a run.
            base: folder that paths in HTML and SARIF are relative to; JSON has absolute paths.

        Raises:
            RunFolderError: the disk is full, or the folder was removed.
        """
        if self.json:
            write_output(self.json, json_format.dumps(to_json(report), indent=2, allow_nan=False) + "\n", "report")
        if self.html:
            write_output(self.html, format_html(report, base=base), "report")
        if self.sarif:
            from trueloop.reporting.sarif import to_sarif

            write_output(self.sarif, json_format.dumps(to_sarif(report, base=base), indent=2) + "\n", "report")
