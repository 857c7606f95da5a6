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

DEFAULT_LIMIT = 50  # rows of the table if --limit is not passed


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
        filters: List only runs that match: 'val/loss<0.1', 'recipe=digits', 'config.optim.lr>=0.001'. Repeatable.
        state: List only runs in this state: running, finished, killed ...
        sort: Sort by started, name, any other field, a metric (best value first) or a setting.
        reverse: Reverse the order.
        limit: Largest number of runs to list; 0 = all. By default 50 in a table, and all with --json.
        root: Folder of the runs.
        json: Print one JSON list and nothing else.
    """
    conditions = [parse_condition(text) for text in filters or ()]
    names = [sort, *(each.name for each in conditions)]
    runs = load_overviews(root, with_settings=any(name.startswith(("config.", "options.")) for name in names))
    if state is not None:
        conditions.append(state_condition(state, runs))
    matching = sort_runs(filter_runs(runs, conditions), sort, reverse=reverse) if runs else []
    max_runs = limit if limit is not None else 0 if json else DEFAULT_LIMIT
    listed = matching[:max_runs] if max_runs > 0 else matching
    if json:
        print(encode_line([run.as_json() for run in listed]), end="")
        return
    extra = [name for name in dict.fromkeys(names) if name not in FIELDS]
    _print_table(listed, {name: [value_cell(field_getter(name, runs)(run)) for run in listed] for name in extra})
    hidden = len(matching) - len(listed)
    hint = f" {format_count(hidden, 'more run')}: --limit 0." if hidden else ""
    print_line(f"{format_count(len(listed), 'run')} of {len(runs)} in {root}.{hint}")


def _print_table(runs: Sequence[Overview], extra: dict[str, list[str]]) -> None:
    """Print one row per run; ``extra`` has the cells of further columns by title."""
    skipped = [str(run.record.get("skipped") or "") for run in runs]  # updates whose gradient was not finite
    if any(skipped):
        extra = {"skipped": skipped, **extra}
    columns = {
        "run": [run.name for run in runs],
        "state": [run.state for run in runs],
        "started": [started_cell(run) for run in runs],
        "update": [progress_cell(run) for run in runs],
        "time": [duration_cell(run) for run in runs],
        **extra,
    }
    if not all(run.monitor[0] in extra for run in runs):
        columns["best"] = [best_cell(run) for run in runs]
    if runs:
        rows = list(zip(*columns.values(), strict=True))
        right = range(3, 5 + len(extra))
        print_line("\n".join(align_columns(list(columns), rows, right=right, never_cut={0}, width=terminal_width())))
