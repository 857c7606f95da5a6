"""Print the report of `trueloop doctor`: one line per check, with the fix below each problem."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trueloop.cli.columns import strip_line_ends
from trueloop.core.formatting import format_count, replace_unprintable
from trueloop.doctor.diagnosis import Level
from trueloop.doctor.machine import Machine
from trueloop.doctor.run_checks import PROBLEM_LEVELS, CheckResult, has_errors

STYLES: Final = {
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "bold yellow",
    Level.ERROR: "bold red",
    Level.UNKNOWN: "magenta",
}


def print_report(machine: Machine, results: Sequence[CheckResult]) -> None:
    """Print all results by group, and a summary."""
    console = Console(highlight=False)
    title_width = max((len(each.check.title) for each in results), default=0)
    with strip_line_ends(console):
        _print_groups(console, results, title_width)
    console.print(Text(_summary(results, machine)))


def _print_groups(console: Console, results: Sequence[CheckResult], title_width: int) -> None:
    for group, members in groupby(results, key=lambda each: each.check.group):
        console.print(Text(group, "bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, min_width=max(map(len, Level)))
        grid.add_column(no_wrap=True, min_width=title_width)
        for each in members:
            grid.add_row(Text(each.diagnosis.level, STYLES[each.diagnosis.level]), each.check.title, _check_lines(each))
        console.print(Padding(grid, (0, 0, 1, 2)))


def _check_lines(result: CheckResult) -> Text:
    diagnosis = result.diagnosis
    text = Text(replace_unprintable(diagnosis.message))
    if diagnosis.remedy:
        text.append("\nfix: ", "bold green").append(replace_unprintable(diagnosis.remedy))
    if result.check.failure and diagnosis.level in PROBLEM_LEVELS:
        text.append("\nmore: ", "dim").append(f"trueloop explain {result.check.failure}", "dim")
    return text


def _summary(results: Sequence[CheckResult], machine: Machine) -> str:
    counts = Counter(each.diagnosis.level for each in results)
    problems = ", ".join(format_count(counts[level], level.value) for level in PROBLEM_LEVELS if counts[level])
    where = f" in a container ({machine.container})" if machine.container else ""
    verdict = "A run would fail." if has_errors(results) else "A run can start."
    return f"{format_count(len(results), 'check')}{where}: {problems or 'nothing is wrong'}. {verdict}"
