"""What differs between runs: settings, code, data, environment; and how far each came."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trueloop.runs.history import History
from trueloop.runs.queries.overview import Point, flatten, metric_points, monitored_metric
from trueloop.runs.queries.ranking import rank_points

Group = Literal["config", "code", "data", "model", "environment"]
ABSENT = "absent"
"""The value of what a run does not have."""

# By the first part of a fact's name; what is not here was measured on the machine, or tells of it.
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
"""Facts that differ between any two runs, or only say how one was asked for, or what the machine had left then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One name with a value for each run."""

    group: Group
    name: str
    values: Sequence[Any]
    """In the order of the runs; `ABSENT` where a run does not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """One metric of several runs; None where a run did not measure it, or nothing was finite."""

    metric: str
    best: Sequence[Point | None]
    """By the mode of the metric; the newest where less or more is neither better."""
    last: Sequence[Point | None]


def find_differences(histories: Sequence[History]) -> list[Difference]:
    """List every fact that is not the same in all runs, by group."""
    facts = [_facts(history) for history in histories]
    names = dict.fromkeys(name for each in facts for name in each)
    found = [
        Difference(group=_group(name), name=name, values=[each.get(name, ABSENT) for each in facts])
        for name in names
        if len({_text(each.get(name, ABSENT)) for each in facts}) > 1
    ]
    groups: list[Group] = ["config", "code", "data", "model", "environment"]
    return sorted(found, key=lambda each: groups.index(each.group))


def compare_metrics(
    histories: Sequence[History], modes: Mapping[str, Literal["min", "max"] | None]
) -> list[MetricComparison]:
    """Lay the metrics of several runs side by side.

    Args:
        histories: of the runs.
        modes: whether less or more of a metric is better; None where that is not known.
    """
    told = [metric_points(history.evaluations) for history in histories]
    return [
        MetricComparison(
            metric=name,
            best=[_best_point(history, name, modes.get(name)) for history in histories],
            last=[each[name][-1] if name in each else None for each in told],
        )
        for name in dict.fromkeys(name for each in told for name in each)
    ]


def metric_modes(histories: Sequence[History]) -> dict[str, Literal["min", "max"]]:
    """Say which way each monitored metric is better, as the runs themselves say."""
    return dict(monitored_metric(history.facts) for history in histories)


def _best_point(history: History, name: str, mode: Literal["min", "max"] | None) -> Point | None:
    if mode is None:
        found = metric_points(history.evaluations).get(name)
        return found[-1] if found else None
    return next(iter(rank_points(history, name, mode)), None)


def _facts(history: History) -> dict[str, Any]:
    facts = flatten({key: value for key, value in history.facts.items() if key not in _IGNORED_FACTS})
    return {name: _digest(value) if name.startswith("source.") else value for name, value in facts.items()}


def _digest(source: Any) -> str:
    """A recipe's text is too long for a table: that it is another one is told."""
    return f"sha256:{hashlib.sha256(str(source).encode(errors='replace')).hexdigest()[:12]}"


def _group(name: str) -> Group:
    return _GROUPS.get(name.partition(".")[0], "environment")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
