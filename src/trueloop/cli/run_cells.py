"""Format facts about a run for the cells of a table."""

from collections.abc import Sequence
from pathlib import Path
from time import localtime, strftime

from trueloop.core.formatting import format_duration, format_float
from trueloop.runs.queries.overview import Overview, Point


def started_cell(run: Overview) -> str:
    """Format the start of a run in local time."""
    try:
        return strftime("%Y-%m-%d %H:%M", localtime(run.started_at)) if run.started_at else ""
    except (OverflowError, ValueError, OSError, TypeError):  # the journal contains an invalid time
        return "unknown"


def progress_cell(run: Overview) -> str:
    """Format the number of finished updates and the number of all updates."""
    return f"{run.record['update']}/{run.record['updates'] or '?'}" if not run.problem else ""


def duration_cell(run: Overview) -> str:
    """Format the training time of a run."""
    return format_duration(float(run.record["duration_s"])) if not run.problem else ""


def best_cell(run: Overview) -> str:
    """Format the best value of the monitored metric, or why the journal cannot be read."""
    metric, mode = run.monitor
    best = run.best(metric, mode)
    return run.problem or (f"{metric} {metric_cell(best)}" if best else "")


def metric_cell(point: Point | None) -> str:
    """Format a value with the number of the update after which it was measured."""
    return f"{format_float(point.value, 4)} @ {point.update}" if point else ""


def value_cell(value: object) -> str:
    """Format any value."""
    return format_float(value, 4) if isinstance(value, float) else "" if value is None else str(value)


def unique_labels(runs: Sequence[Overview]) -> list[str]:
    """Return a unique label per run: the name of its folder, or its path if two names are the same."""
    paths: dict[str, set[Path]] = {}
    for run in runs:
        paths.setdefault(run.name, set()).add(run.path.resolve())
    labels = [run.name if len(paths[run.name]) == 1 else str(run.path) for run in runs]
    earlier = [labels[:index].count(label) for index, label in enumerate(labels)]  # number of earlier equal labels
    return [f"{label} ({count + 1})" if count else label for label, count in zip(labels, earlier, strict=True)]
