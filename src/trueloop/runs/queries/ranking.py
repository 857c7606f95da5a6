"""Rank runs, and the evaluations of a run, by a metric."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import did_you_mean
from trueloop.runs.history import History
from trueloop.runs.queries.overview import Overview, Point, metric_points

Mode = Literal["min", "max"]

# The last word of a metric's name decides its direction if no run monitors the metric.
_LOWER_IS_BETTER = re.compile(r"(^|[/_\W])(loss|error|err|mae|mse|rmse|nll|perplexity|ppl|wer|cer)$", re.IGNORECASE)
_HIGHER_IS_BETTER = re.compile(
    r"(^|[/_\W])(accuracy|acc|f1|auc|auroc|precision|recall|bleu|rouge|iou|dice|map|r2|top[_-]?\d+)$", re.IGNORECASE
)


class RankedRun(NamedTuple):
    """A run with the point at which it reached its best value of a metric."""

    run: Overview
    point: Point


def metric_mode(metric: str, runs: Sequence[Overview]) -> Mode | None:
    """Return whether lower or higher values of a metric are better.

    Returns:
        The mode of the runs that monitor the metric, else the mode that its name implies; None if the name implies none
        or if the runs disagree.
    """
    modes = Counter(mode for name, mode in (run.monitor for run in runs if not run.problem) if name == metric)
    if len(modes) == 1:
        return "max" if "max" in modes else "min"
    if modes:
        return None
    return "min" if _LOWER_IS_BETTER.search(metric) else "max" if _HIGHER_IS_BETTER.search(metric) else None


def require_mode(metric: str, runs: Sequence[Overview]) -> Mode:
    """Return the result of `metric_mode` if it is known.

    Raises:
        InvalidConfig: the mode is unknown, or no run has measured the metric.
    """
    if not any(run.last(metric) for run in runs):
        raise _unmeasured_metric_error(metric, runs)
    mode = metric_mode(metric, runs)
    if mode is None:
        raise InvalidConfig(
            f"Neither the name {metric!r} nor the settings of the runs say whether lower or higher values are better.",
            fix="Pass --mode min or --mode max.",
        )
    return mode


def rank_runs(runs: Sequence[Overview], metric: str, mode: Mode) -> list[RankedRun]:
    """Return the runs with their best points, best run first; of equal runs, the one that started first comes first.

    Raises:
        InvalidConfig: no run has measured the metric; the message lists the measured metrics.
    """
    entries = [RankedRun(run, best) for run in runs if (best := run.best(metric, mode))]
    if not entries:
        raise _unmeasured_metric_error(metric, runs)
    sign = 1 if mode == "min" else -1
    return sorted(entries, key=lambda entry: (sign * entry.point.value, entry.run.started_at, entry.run.name))


def rank_points(history: History, metric: str, mode: Mode) -> list[Point]:
    """Return every finite value of a metric in one run, best first; of equal values, the earlier comes first."""
    finite = [point for point in metric_points(history.evaluations).get(metric, ()) if abs(point.value) < float("inf")]
    sign = 1 if mode == "min" else -1
    return sorted(finite, key=lambda point: (sign * point.value, point.update))


def _unmeasured_metric_error(metric: str, runs: Sequence[Overview]) -> InvalidConfig:
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    if metric in names:
        return InvalidConfig(f"No run has a finite value of {metric!r}.", fix="Choose another metric.")
    fix = f"{did_you_mean(metric, names)}Measured metrics: {', '.join(names) or 'none'}."
    return InvalidConfig(f"No run has measured {metric!r}.", fix=fix)
