"""Print the summary of a finished run, for the user or as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from trueloop.core.formatting import format_count, format_duration, format_float

if TYPE_CHECKING:
    from trueloop.app.training.run_recipe import RunSummary
    from trueloop.recipes.recipe import Recipe


def print_json(summary: RunSummary, *, again: Sequence[str], event: str | None = None) -> None:
    """Print the summary as one JSON object, with paths as text and non-finite metrics as null.

    Args:
        summary: summary of the run.
        again: words of the command that resumes the run, for the key "resume".
        event: value of the key "event", if the object is one of several lines; None = no such key.
    """
    event_field = {} if event is None else {"event": event}
    body = {**event_field, **_jsonable(dataclasses.asdict(summary)), "resume": shlex.join(again)}
    print(json.dumps(body, allow_nan=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


_TITLES = {
    "finished": "finished",
    "early_stop": "stopped early: the monitored metric no longer improves",
    "interrupted": "interrupted, everything is saved",
    "preempted": "preempted, everything is saved",
    "smoke": "smoke test passed: the loss falls",
}
_STOPPED = ("interrupted", "preempted")


def print_summary(summary: RunSummary, recipe: Recipe, *, again: Sequence[str]) -> None:
    """Print a panel of results and paths, then the next commands, which are not wrapped so that they can be copied.

    Args:
        summary: summary of the run.
        recipe: the recipe with the settings of the run.
        again: words of the command that resumes the run.
    """
    console = Console(highlight=False)
    colour = "yellow" if summary.reason in _STOPPED else "green"
    console.print(
        Panel(
            Group(_metric_table(summary), "", _path_table(summary, recipe)),
            title=f"[bold]{escape(recipe.name)}[/] {_TITLES[summary.reason]}",
            border_style=colour,
            title_align="left",
            padding=(1, 2),
        )
    )
    for purpose, command in _next_commands(summary, recipe, again=again):
        console.print(f"[bold]{purpose}[/]  {escape(command)}", soft_wrap=True)


def _metric_table(summary: RunSummary) -> Table:
    """Return a table with one row per metric and one column per split."""
    splits = list(dict.fromkeys(key.partition("/")[0] for key in summary.metrics))
    names = list(dict.fromkeys(key.partition("/")[2] for key in summary.metrics))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for split in splits:
        # The test set is evaluated with the final weights, which may be from an earlier epoch than the newest val.
        table.add_column(
            "val (last)" if split == "val" and "test" in splits else escape(split.replace("_", " ")), justify="right"
        )
    for name in names:
        values = (summary.metrics.get(f"{split}/{name}") for split in splits)
        table.add_row(escape(name.replace("_", " ")), *("" if value is None else _number(value) for value in values))
    return table


def _number(value: float) -> str:
    return f"[bold cyan]{format_float(value, digits=4)}[/]"


def _path_table(summary: RunSummary, recipe: Recipe) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    best = str(summary.best_checkpoint or "")
    if best and summary.best_value is not None:
        best += f" ({recipe.train.monitor.metric} {format_float(summary.best_value, digits=4)})"
    journal = summary.run_dir / "journal.jsonl" if summary.run_dir else ""
    for label, value in (
        ("best checkpoint", best),
        ("weights", summary.weights),
        ("curves", summary.curves),
        ("report", summary.report),
        ("journal", journal),
        ("time", _format_time(summary)),
    ):
        if value:
            table.add_row(label, escape(str(value)))
    if summary.skipped:
        table.add_row(
            "[yellow]skipped[/]",
            f"{summary.skipped} updates were skipped because their gradients were not finite; see the journal",
        )
    return table


def _format_time(summary: RunSummary) -> str:
    parts = [format_duration(summary.seconds), format_count(summary.update, "update")]
    if summary.epochs:
        parts.append(format_count(summary.epochs, "epoch"))
    if summary.resumed_from:
        parts.append(f"resumed after update {summary.resumed_from}")
    return ", ".join(parts)


def _next_commands(summary: RunSummary, recipe: Recipe, *, again: Sequence[str]) -> list[tuple[str, str]]:
    if summary.run_dir is None:
        return []
    report = shlex.join(["trueloop", "report", str(summary.run_dir)])
    if summary.report is not None:
        report += f"   (or open {summary.report})"
    if summary.reason in _STOPPED:
        return [("Resume     ", shlex.join(again)), ("Look closer", report)]
    if summary.reason == "early_stop":
        return [("Look closer", report)]
    epochs = 2 * max(recipe.train.epochs, summary.epochs)
    return [("Look closer ", report), ("Train longer", shlex.join(_with_epochs(again, epochs)))]


def _with_epochs(again: Sequence[str], epochs: int) -> list[str]:
    """Return the command that resumes the run with another number of epochs."""
    command = list(again)
    if "--epochs" in command:
        index = command.index("--epochs")
        del command[index : index + 2]
    return [*command, "--epochs", str(epochs)]
