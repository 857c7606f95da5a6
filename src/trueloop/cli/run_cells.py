"""Formats facts about a run for the cells of a table."""

from collections.abc import Sequence
from pathlib import Path
from time import localtime, strftime

from trueloop.core.formatting import format_duration, format_float
from trueloop.runs.queries.overview import Overview, Point


def started_cell(run: Overview) -> str:
    """Write when a run began, in the time of this machine."""
    try:
        return strftime("%Y-%m-%d %H:%M", localtime(run.started_at)) if run.started_at else ""
    except (OverflowError, ValueError, OSError, TypeError):  # something in the journal that is no time
        return "unknown"


def progress_cell(run: Overview) -> str:
    """Write how many updates are done, of how many."""
    return f"{run.record['update']}/{run.record['updates'] or '?'}" if not run.problem else ""


def duration_cell(run: Overview) -> str:
    """Write for how long it trained."""
    return format_duration(float(run.record["duration_s"])) if not run.problem else ""


def best_cell(run: Overview) -> str:
    """Write the best value of the monitored metric; of a run whose journal does not tell, why."""
    metric, mode = run.monitor
    found = run.best(metric, mode)
    return run.problem or (f"{metric} {metric_cell(found)}" if found else "")


def metric_cell(point: Point | None) -> str:
    """Write a value with the update it was measured after."""
    return f"{format_float(point.value, 4)} @ {point.update}" if point else ""


def value_cell(value: object) -> str:
    """Write any value."""
    return format_float(value, 4) if isinstance(value, float) else "" if value is None else str(value)


def labels_of(runs: Sequence[Overview]) -> list[str]:
    """Name runs in one picture or table: by their folder, by its path where two are called alike."""
    paths: dict[str, set[Path]] = {}
    for run in runs:
        paths.setdefault(run.name, set()).add(run.path.resolve())
    labels = [run.name if len(paths[run.name]) == 1 else str(run.path) for run in runs]
    before = [labels[:k].count(label) for k, label in enumerate(labels)]
    return [f"{label} ({nth + 1})" if nth else label for label, nth in zip(labels, before, strict=True)]
