"""`trueloop failures`: list all known silent failures."""

import json as json_format
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trueloop.app.option_types import Flag
from trueloop.app.sanitizer.live_findings import COLOURS
from trueloop.core.formatting import format_count
from trueloop.failures.load import Entry, catalogue


def failures_command(*, json: Flag = False, table: Flag = False) -> None:
    """List all known silent failures by family.

    Args:
        json: Print a JSON list and nothing else.
        table: Print a Markdown table: whether each is found at run time, by the linter, and shown in the lab.
    """
    entries = list(catalogue().values())
    if json:
        print(json_format.dumps([as_record(entry) for entry in entries], indent=2))
    elif table:
        print(markdown(entries))
    else:
        _print_families(entries, Console(highlight=False))


def as_record(entry: Entry) -> dict[str, str | bool]:
    """Return the `--json` record of a failure."""
    failure = entry.failure
    return {
        "code": entry.code,
        "slug": entry.slug,
        "family": entry.family,
        "severity": failure.severity.value,
        "title": failure.title,
        "fix": failure.fix,
        "watched": failure.detector is not None,
        "linted": failure.rule is not None,
        "checked_by_doctor": failure.checked_by_doctor,
        "injected": failure.inject is not None,
    }


def markdown(entries: Iterable[Entry]) -> str:
    """Return a Markdown table: whether each failure is found at run time, by the linter, and shown in the lab."""
    heads = ("code", "failure", "severity", "run time", "linter", "lab", "title")
    return "\n".join(map(_row, (heads, ["---"] * len(heads), *map(_cells, entries))))


def _cells(entry: Entry) -> tuple[str, ...]:
    failure = entry.failure
    at_run_time = "yes" if failure.detector else "doctor" if failure.checked_by_doctor else "no"
    columns = (at_run_time, *("yes" if each else "no" for each in (failure.rule, failure.inject)))
    return (entry.code, f"{entry.family}/{entry.slug}", str(failure.severity), *columns, failure.title)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _print_families(entries: Sequence[Entry], console: Console) -> None:
    for family, members in groupby(entries, key=lambda entry: entry.family):
        console.print(Text(family, "bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        for entry in members:
            style = COLOURS[entry.failure.severity]
            grid.add_row(Text(f"  {entry.code}", style), Text(entry.slug, "cyan"), Text(entry.failure.title))
        console.print(grid, "")
    example = f"; details of one: trueloop explain {entries[0].code}" if entries else ""
    console.print(Text(f"{format_count(len(entries), 'failure')}{example}", "dim"))
