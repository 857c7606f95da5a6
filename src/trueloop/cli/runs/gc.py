"""`trueloop runs gc`: list the checkpoints and runs that can be removed, and remove them with --yes."""

import json as json_format
from pathlib import Path

from trueloop.app.option_types import Count, Flag
from trueloop.app.runs.cleanup import CleanupOptions, CleanupPlan, clean_up, plan_cleanup
from trueloop.cli.columns import align_columns, print_line, terminal_width
from trueloop.cli.runs import Root
from trueloop.core.formatting import format_count, format_size, replace_unprintable
from trueloop.runs.queries.index import load_overviews
from trueloop.runs.queries.overview import read_overview
from trueloop.runs.queries.resolve import find_run


def gc_command(
    *runs: str,
    keep_best: Count | None = None,
    unfinished: Flag = False,
    older_than: float = 0.0,
    yes: Flag = False,
    root: Root = Path("runs"),
    json: Flag = False,
) -> None:
    """List the checkpoints and runs that can be removed, and their sizes; with --yes, remove them.

    Never removed: the best checkpoint by each monitored metric, the last checkpoint of a run, anything of a run that
    is training, and files that trueloop did not write.

    Args:
        runs: Clean up only these runs; by default all runs in the root.
        keep_best: Number of best checkpoints to keep per run and monitored metric, in addition to the last one.
        unfinished: Remove runs that stopped before their end and have no checkpoint to resume from.
        older_than: Clean up only runs whose journal was last written at least this many days ago; by default all.
        yes: Remove the listed items. Without this flag, nothing is changed.
        root: Folder of the runs.
        json: Print one JSON object and nothing else.
    """
    options = CleanupOptions(keep_best=keep_best, unfinished=unfinished, older_than_days=older_than)
    options.check()
    paths = dict.fromkeys(find_run(name, root) for name in runs)
    overviews = [read_overview(path) for path in paths] if paths else load_overviews(root)
    plan = (clean_up if yes else plan_cleanup)(overviews, root, options)
    if json:
        record = {
            "removed": yes,
            "bytes": sum(item.bytes for item in plan.items),
            "items": [item.as_json() for item in plan.items],
            "skipped": [{"path": str(path), "reason": reason} for path, reason in plan.skipped],
        }
        print(json_format.dumps(record))
        return
    _print_plan(plan, done=yes)


def _print_plan(plan: CleanupPlan, *, done: bool) -> None:
    rows = [[item.kind, format_size(item.bytes), str(item.path), item.reason] for item in plan.items]
    if rows:
        titles = ["item", "size", "path", "reason"]
        print_line("\n".join(align_columns(titles, rows, right={1}, never_cut={2}, width=terminal_width())))
    for path, reason in plan.skipped:
        print_line(replace_unprintable(f"not removed  {path}: {reason}"))
    summary = f"{format_count(len(rows), 'item')}, {format_size(sum(item.bytes for item in plan.items))}"
    if done:
        print_line(f"Removed {summary}.")
    elif rows:
        print_line(f"Nothing was changed. To remove {summary}, run the same command with --yes.")
    else:
        print_line("Nothing would be removed.")
