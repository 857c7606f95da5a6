"""A program under `run --lab` tells the lab how it is: numbers as they come, findings, its report in the end."""

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

WORDS: Final = 400  # characters of a command line that are told


class LiveFeed:
    """One program's feed; whatever goes wrong with it is a problem that the report names, and nothing else.

    Args:
        program: what is about to run.
        environment: says where feeds belong.
        base: the working directory, which paths are told relative to.
        rank: of this process among several.

    Raises:
        OSError: nothing can be written there.
    """

    def __init__(
        self, program: ProgramCommand, environment: Mapping[str, str], *, base: Path, rank: int | None
    ) -> None:
        self._base = base
        target = f"-m {program.target}" if program.module else program.target
        about = {
            "name": program.target if program.module else Path(program.target).name,
            "command": " ".join([target, *program.arguments])[:WORDS],
            "folder": str(base),
            "python": platform.python_version(),
            "trueloop": __version__,
        }
        self.audience = LiveWriter(live_folder(environment), about, rank=rank)
        self.problem = ""
        """Why the lab hears nothing more, in words."""

    @property
    def name(self) -> str:
        """What the lab calls this run."""
        return self.audience.name

    def on_finding(self, finding: Finding) -> None:
        """Tell of a finding, with the lines of source it speaks of."""
        if not self.problem:
            try:
                told = {"finding": finding_to_json(finding), "excerpts": self._excerpts(finding)}
                self.audience.write_finding(told)
            except (OSError, ValueError) as error:
                self._lost(error)

    def end(self, report: Report, code: int, nothing: str) -> None:
        """Tell how it ended.

        Args:
            report: of this process.
            code: what it exits with.
            nothing: why there is no report; "" where there is one.
        """
        error = report.error
        told: dict[str, Any] = {"report": to_json(report), "nothing": nothing}
        try:
            told["error_excerpts"] = self._excerpts(error) if error else []
            self.audience.write_end(report.updates, code, told)
        except (OSError, ValueError) as fault:
            self._lost(fault)

    def _lost(self, error: Exception) -> None:
        self.problem = f"the lab hears nothing more of this run: {error}"

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
    """A run as the lab shows it; without a lab, or where nothing can be written, the program runs all the same.

    Args:
        feed: what the run tells; None where nothing can be written.
        where: for people: the address of its page, or why there is none.
        trouble: what went wrong so far, for the report.
    """

    def __init__(self, feed: LiveFeed | None, where: str, trouble: tuple[str, ...] = ()) -> None:
        self._feed, self.where, self._trouble = feed, where, trouble
        self.audience = feed and feed.audience

    @classmethod
    def open(
        cls, program: ProgramCommand, environment: Mapping[str, str], *, base: Path, group: RankReports | None
    ) -> LabSession:
        """Begin to tell, and find the lab or start one; nobody waits until it has started.

        Raises:
            MissingExtra: a lab would have to be started, and what it needs is not installed.
        """
        try:
            feed = LiveFeed(program, environment, base=base, rank=group and group.rank)
        except OSError as error:
            words = f"the lab hears nothing of this run: {error}"
            return cls(None, words, (words,))
        if group is not None and group.local:
            return cls(feed, "")
        try:
            lab = read_address(environment) or start_lab(environment, base / "runs")
        except (OSError, SubprocessError) as error:
            return cls(feed, f"no lab could be started: {error}")
        return cls(feed, f"this run in the lab: {lab}/#/watch?runs=live/{feed.name}")

    @property
    def record_problem(self) -> tuple[str, ...]:
        """What went wrong, for the report."""
        return (*self._trouble, *filter(None, [self._feed.problem if self._feed else ""]))

    def also_to_lab(self, tell: Callable[[Finding], None]) -> Callable[[Finding], None]:
        """Return a function that tells the lab of a finding, too."""

        def both(finding: Finding) -> None:
            tell(finding)
            if self._feed is not None:
                self._feed.on_finding(finding)

        return both

    def end(self, ended: LaunchResult) -> None:
        """Tell how the program ended."""
        if self._feed is not None:
            self._feed.end(ended.report, ended.code, ended.nothing)
