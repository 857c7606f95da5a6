"""`trueloop runs show`: everything about one run, as tables or as JSON."""

from pathlib import Path
from typing import Any

from trueloop.app.option_types import Flag
from trueloop.cli.columns import align_columns, print_line, terminal_width
from trueloop.cli.run_cells import best_cell, duration_cell, metric_cell, progress_cell, started_cell
from trueloop.cli.runs import Root
from trueloop.core.formatting import format_count, format_float, replace_unprintable
from trueloop.runs.history import History
from trueloop.runs.journal import read_journal
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.queries.overview import Overview, flat_settings, flatten, read_overview, require_readable
from trueloop.runs.queries.pages import format_value
from trueloop.runs.queries.ranking import metric_mode
from trueloop.runs.queries.resolve import find_run
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder

MAX_NOTES = 10  # number of newest notes printed without --json
NOT_ENVIRONMENT = ("config", "options", "class_names", "command", "recipe", "run_id", "source", "packages")


def show_command(run: str, *, root: Root = Path("runs"), json: Flag = False) -> None:
    """Show everything about one run: state, metrics, checkpoints, notes, settings, code, data, environment.

    Args:
        run: The run: a path, a name, or the beginning of a name or run id.
        root: Folder in which a run is looked up by name.
        json: Print one JSON object and nothing else.
    """
    overview = require_readable(read_overview(find_run(run, root)))
    history = read_journal(overview.path)
    folder = CheckpointFolder(overview.path / "checkpoints", writing=False)
    checkpoints, problems = folder.checkpoints(), folder.problems()
    if json:
        saved = [{"path": str(c.path), "update": c.update, "epoch": c.epoch, "metrics": c.metrics} for c in checkpoints]
        notes = [{"update": n.update, "kind": n.kind, "message": n.message} for n in history.notes]
        details: dict[str, Any] = {"checkpoints": saved, "problems": problems, "notes": notes, "facts": history.facts}
        print(encode_line(overview.as_json() | details), end="")
        return
    _table("", ["", ""], _head(overview, history))
    _table("Metrics", ["", "best", "last"], [_metric(overview, name) for name in overview.metrics])
    _table("Checkpoints", ["update", "epoch", "", "folder"], [_checkpoint(overview, each) for each in checkpoints])
    for problem in problems:
        print_line(f"  {replace_unprintable(problem)}")
    _table("Notes", ["update", "", ""], [[str(n.update), n.kind, n.message] for n in history.notes[-MAX_NOTES:]])
    _table("Settings", ["", ""], _pairs(flat_settings(history)))
    other_facts = flatten({name: value for name, value in history.facts.items() if name not in NOT_ENVIRONMENT})
    _table("Code, data, environment", ["", ""], _pairs(other_facts))


def _pairs(facts: dict[str, Any]) -> list[list[str]]:
    return [[name, format_value(value)] for name, value in facts.items()]


def _table(title: str, head: list[str], rows: list[list[str]]) -> None:
    if not rows:
        return
    if title:
        print_line(f"\n{title}\n")
    columns = terminal_width()
    for line in align_columns(head, rows, never_cut={0}, width=None if columns is None else columns - 2):
        print_line(f"  {line}")


def _head(overview: Overview, history: History) -> list[list[str]]:
    processes = f", in {format_count(history.processes, 'process')}" if history.processes > 1 else ""
    pairs = {
        "run": overview.name, "path": str(overview.path), "run id": overview.run_id, "recipe": overview.recipe,
        "state": overview.state, "started": started_cell(overview),
        "update": f"{progress_cell(overview)}, epoch {overview.record['epoch']}/{overview.record['epochs']}",
        "time": duration_cell(overview) + processes, "best": best_cell(overview),
        "skipped": str(len(history.skipped) or "none"),
    }  # fmt: skip
    return [[name, value] for name, value in pairs.items()]


def _metric(overview: Overview, name: str) -> list[str]:
    mode = metric_mode(name, [overview])
    return [name, metric_cell(overview.best(name, mode)) if mode else "", metric_cell(overview.last(name))]


def _checkpoint(overview: Overview, checkpoint: Checkpoint) -> list[str]:
    metric, mode = overview.monitor
    best = overview.best(metric, mode)
    text = f"{metric} {format_float(checkpoint.metrics[metric], 4)}" if metric in checkpoint.metrics else ""
    text += " (best)" if best and best.update == checkpoint.update else ""
    return [str(checkpoint.update), str(checkpoint.epoch), text, checkpoint.path.name]
