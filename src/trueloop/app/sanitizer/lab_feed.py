"""Send a run under `run --lab` to the lab: live numbers, findings, and the final report."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, Final

from trueloop.app.lab_address import read_address, start_lab
from trueloop.app.sanitizer.rank_reports import RankReports
from trueloop.core.findings import ExplainedError, Finding, Report
from trueloop.reporting.excerpt import excerpts
from trueloop.reporting.json_report import finding_to_json, to_json
from trueloop.reporting.summary import format_path
from trueloop.runs.live.folder import live_folder
from trueloop.runs.live.writer import LiveWriter
from trueloop.sanitizer.launch import LaunchResult
from trueloop.sanitizer.run_program import ProgramCommand
from trueloop.version import __version__

MAX_COMMAND: Final = 400  # number of characters of a command line to send


class LiveFeed:
    """The live feed of one program; errors while writing it are reported as problems and never raised.

    Args:
        program: the program that is about to run.
        environment: environment variables, which determine the folder of feeds.
        base: the working directory, for relative paths.
        rank: rank of this process; None for a single process.

    Raises:
        OSError: the feed cannot be written.
    """

    def __init__(
        self, program: ProgramCommand, environment: Mapping[str, str], *, base: Path, rank: int | None
    ) -> None:
        self._base = base
        target = f"-m {program.target}" if program.module else program.target
        metadata = {
            "name": program.target if program.module else Path(program.target).name,
            "command": " ".join([target, *program.arguments])[:MAX_COMMAND],
            "folder": str(base),
            "python": platform.python_version(),
            "trueloop": __version__,
        }
        self.writer = LiveWriter(live_folder(environment), metadata, rank=rank)
        self.problem = ""
        """Reason why the feed ended early; "" if it did not."""

    @property
    def name(self) -> str:
        """Name of this run in the lab."""
        return self.writer.name

    def on_finding(self, finding: Finding) -> None:
        """Send a finding with its source excerpts."""
        if not self.problem:
            try:
                record = {"finding": finding_to_json(finding), "excerpts": self._excerpts(finding)}
                self.writer.write_finding(record)
            except (OSError, ValueError) as error:
                self._on_write_error(error)

    def end(self, report: Report, code: int, not_judged_reason: str) -> None:
        """Send the end of the program.

        Args:
            report: report of this process.
            code: exit code of the program.
            not_judged_reason: reason why the program was not judged; "" if it was judged.
        """
        error = report.error
        record: dict[str, Any] = {"report": to_json(report), "nothing": not_judged_reason}
        try:
            record["error_excerpts"] = self._excerpts(error) if error else []
            self.writer.write_end(report.updates, code, record)
        except (OSError, ValueError) as write_error:
            self._on_write_error(write_error)

    def _on_write_error(self, error: Exception) -> None:
        self.problem = f"the lab receives no more data of this run: {error}"

    def _excerpts(self, finding: Finding | ExplainedError) -> list[dict[str, Any]]:
        return [
            {
                "path": f"{format_path(excerpt.location.path, self._base)}:{excerpt.location.line}",
                "function": excerpt.location.function,
                "lines": [
                    line
                    and {
                        "number": line.number,
                        "text": line.text,
                        "fault": any(note.is_primary for note in line.notes),
                        "words": [note.text for note in line.notes if note.text],
                    }
                    for line in excerpt.lines
                ],
            }
            for excerpt in excerpts(finding)
        ]


class LabSession:
    """The connection of a run to the lab; the program runs even if there is no lab or no feed can be written.

    Args:
        feed: the live feed; None if it cannot be written.
        notice: message to the user with the address of the run's page, or the reason why there is no page.
        problems: problems so far, for the report.
    """

    def __init__(self, feed: LiveFeed | None, notice: str, problems: tuple[str, ...] = ()) -> None:
        self._feed, self.notice, self._problems = feed, notice, problems
        self.writer = feed and feed.writer

    @classmethod
    def open(
        cls, program: ProgramCommand, environment: Mapping[str, str], *, base: Path, group: RankReports | None
    ) -> LabSession:
        """Start the feed, and find a running lab or start one without waiting for it.

        Raises:
            MissingExtra: no lab is running, and the packages for starting one are not installed.
        """
        try:
            feed = LiveFeed(program, environment, base=base, rank=group and group.rank)
        except OSError as error:
            problem = f"the lab receives no data of this run: {error}"
            return cls(None, problem, (problem,))
        if group is not None and group.local_rank:
            return cls(feed, "")
        try:
            lab = read_address(environment) or start_lab(environment, base / "runs")
        except (OSError, SubprocessError) as error:
            return cls(feed, f"no lab could be started: {error}")
        return cls(feed, f"this run in the lab: {lab}/#/watch?runs=live/{feed.name}")

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems for the report."""
        return (*self._problems, *filter(None, [self._feed.problem if self._feed else ""]))

    def print_and_send(self, print_finding: Callable[[Finding], None]) -> Callable[[Finding], None]:
        """Return a function that prints a finding and sends it to the lab."""

        def on_finding(finding: Finding) -> None:
            print_finding(finding)
            if self._feed is not None:
                self._feed.on_finding(finding)

        return on_finding

    def end(self, result: LaunchResult) -> None:
        """Send the end of the program."""
        if self._feed is not None:
            self._feed.end(result.report, result.code, result.not_judged_reason)
