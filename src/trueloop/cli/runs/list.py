"""`trueloop runs list`: the runs of a folder, filtered and sorted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trueloop.app.option_types import Count, Flag
from trueloop.cli.columns import align_columns, print_line, terminal_width
from trueloop.cli.run_cells import best_cell, duration_cell, progress_cell, started_cell, value_cell
from trueloop.cli.runs import Root
from trueloop.core.formatting import format_count
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.queries.filters import FIELDS, field_getter, filter_runs, parse_condition, sort_runs, state_condition
from trueloop.runs.queries.index import load_overviews
from trueloop.runs.queries.overview import Overview

DEFAULT_LIMIT = 50  # rows of a table without --limit


def list_command(
    *,
    filters: Annotated[list[str] | None, Parameter(name="--filter", negative="")] = None,
    state: str | None = None,
    sort: str = "started",
    reverse: Flag = False,
    limit: Count | None = None,
    root: Root = Path("runs"),
    json: Flag = False,
) -> None:
    """List runs, the newest first.

    Args:
        filters: Only runs that meet this: 'val/loss<0.1', 'recipe=digits', 'config.optim.lr>=0.001'. Repeatable.
        state: Only runs in this state: running, finished, killed ...
        sort: By started, name, any other field, a metric (its best first) or a setting.
        reverse: The other way round.
        limit: At most so many; 0 = all. By default 50 in a table, all with --json.
        root: Where the runs lie.
        json: Print one JSON list and nothing else.
    """
    conditions = [parse_condition(text) for text in filters or ()]
    names = [sort, *(each.name for each in conditions)]
    runs = load_overviews(root, facts=any(name.startswith(("config.", "options.")) for name in names))
    if state is not None:
        conditions.append(state_condition(state, runs))
    found = sort_runs(filter_runs(runs, conditions), sort, reverse=reverse) if runs else []
    most = limit if limit is not None else 0 if json else DEFAULT_LIMIT
    shown = found[:most] if most > 0 else found
    if json:
        print(encode_line([run.as_json() for run in shown]), end="")
        return
    asked = [name for name in dict.fromkeys(names) if name not in FIELDS]
    _print(shown, {name: [value_cell(field_getter(name, runs)(run)) for run in shown] for name in asked})
    more = f" {format_count(len(found) - len(shown), 'more run')}: --limit 0." if len(found) > len(shown) else ""
    print_line(f"{format_count(len(shown), 'run')} of {len(runs)} in {root}.{more}")


def _print(runs: Sequence[Overview], asked: dict[str, list[str]]) -> None:
    shown = {
        "run": [run.name for run in runs],
        "state": [run.state for run in runs],
        "started": [started_cell(run) for run in runs],
        "update": [progress_cell(run) for run in runs],
        "time": [duration_cell(run) for run in runs],
        **asked,
    }
    if not all(run.monitor[0] in asked for run in runs):
        shown["best"] = [best_cell(run) for run in runs]
    if runs:
        rows = list(zip(*shown.values(), strict=True))
        right = range(3, 5 + len(asked))
        print_line("\n".join(align_columns(list(shown), rows, right=right, whole={0}, most=terminal_width())))
