"""Compare runs: differences in settings, code, data and environment, and their metrics."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trueloop.runs.history import History
from trueloop.runs.queries.overview import Point, flatten, metric_points, monitored_metric
from trueloop.runs.queries.ranking import rank_points

Group = Literal["config", "code", "data", "model", "environment"]
ABSENT = "absent"
"""The value of a fact that a run does not have."""

# Group of a fact by the first part of its name; all other facts describe the environment.
_GROUPS: Mapping[str, Group] = {
    "config": "config",
    "options": "config",
    "recipe": "config",
    "plan": "config",
    "code": "code",
    "git": "code",
    "source": "code",
    "data": "data",
    "sizes": "data",
    "splits": "data",
    "class_names": "data",
    "parameters": "model",
    "parameters_frozen": "model",
    "model": "model",
    "optimizer": "model",
}
_IGNORED_FACTS = ("run_id", "command", "store", "restart", "doctor")
"""Facts that differ between any two runs, or only describe how a run was started or which resources were free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A fact that is not the same in all runs."""

    group: Group
    name: str
    values: Sequence[Any]
    """Values in the order of the runs; `ABSENT` for a run without this fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """Values of one metric in several runs, in the order of the runs; None for a run without a value."""

    metric: str
    best: Sequence[Point | None]
    """Best finite value of each run by the mode of the metric; the newest value if the mode is unknown."""
    last: Sequence[Point | None]
    """Newest value of each run."""


def find_differences(histories: Sequence[History]) -> list[Difference]:
    """Return every fact that is not the same in all runs, ordered by group."""
    facts = [_facts(history) for history in histories]
    differences: list[Difference] = []
    for name in dict.fromkeys(name for run_facts in facts for name in run_facts):
        values = [run_facts.get(name, ABSENT) for run_facts in facts]
        if len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1:
            group = _GROUPS.get(name.partition(".")[0], "environment")
            differences.append(Difference(group=group, name=name, values=values))
    return sorted(differences, key=lambda difference: get_args(Group).index(difference.group))


def compare_metrics(
    histories: Sequence[History], modes: Mapping[str, Literal["min", "max"] | None]
) -> list[MetricComparison]:
    """Compare the metrics of several runs.

    Args:
        histories: histories of the runs.
        modes: mode of each metric: whether lower or higher values are better; None = unknown.
    """
    metrics = [metric_points(history.evaluations) for history in histories]
    return [
        MetricComparison(
            metric=name,
            best=[_best_point(history, name, modes.get(name)) for history in histories],
            last=[run_metrics[name][-1] if name in run_metrics else None for run_metrics in metrics],
        )
        for name in dict.fromkeys(name for run_metrics in metrics for name in run_metrics)
    ]


def metric_modes(histories: Sequence[History]) -> dict[str, Literal["min", "max"]]:
    """Return the mode of each monitored metric, as configured in the runs."""
    return dict(monitored_metric(history.facts) for history in histories)


def _best_point(history: History, name: str, mode: Literal["min", "max"] | None) -> Point | None:
    if mode is None:
        points = metric_points(history.evaluations).get(name)
        return points[-1] if points else None
    return next(iter(rank_points(history, name, mode)), None)


def _facts(history: History) -> dict[str, Any]:
    facts = flatten({key: value for key, value in history.facts.items() if key not in _IGNORED_FACTS})
    return {name: _digest(value) if name.startswith("source.") else value for name, value in facts.items()}


def _digest(source: Any) -> str:
    """Return a short hash of a source file, which is too long for a table."""
    return f"sha256:{hashlib.sha256(str(source).encode(errors='replace')).hexdigest()[:12]}"
