"""Choosing and ordering runs: `val/loss<0.1`, `recipe=digits`, `config.optim.lr>=0.001`."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from trueloop.core.errors import InvalidConfig
from trueloop.runs.queries.overview import STATES, Overview
from trueloop.runs.queries.ranking import metric_mode

_CONDITION = re.compile(r"(?P<name>[^<>=!]+?)\s*(?P<sign><=|>=|!=|==|=|<|>)\s*(?P<value>.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LAST = "last:"

FIELDS: dict[str, Callable[[Overview], Any]] = {
    "name": lambda run: run.name,
    "recipe": lambda run: run.recipe,
    "state": lambda run: run.state,
    "run_id": lambda run: run.run_id,
    "started": lambda run: run.started_at,
    "update": lambda run: run.record.get("update"),
    "epoch": lambda run: run.record.get("epoch"),
    "duration": lambda run: run.record.get("duration_s"),
}
"""What can be asked of every run; beside these, the name of a metric, and of a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One filter."""

    name: str
    sign: str
    value: str


def parse_condition(text: str) -> Condition:
    """Read one filter.

    Raises:
        InvalidConfig: it has no sign, or compares with something that is no number where one is needed.
    """
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise InvalidConfig(
            f"The filter {text!r} compares nothing.",
            fix="Write a name, one of = != < <= > >=, and a value: 'val/loss<0.1', 'recipe=digits', 'name=digits-*'.",
        )
    name, value = match["name"].strip(), match["value"]
    if name == "started":
        value = _parse_date(value)
    if match["sign"] in _OPERATORS and _parse_number(value) is None:
        raise InvalidConfig(
            f"The filter {text!r} compares with {value!r}, which is not a number.",
            fix="Compare text with = or !=; a start with a date: 'started>=2026-01-31'.",
        )
    return Condition(name=name, sign=match["sign"], value=value)


def filter_runs(runs: Sequence[Overview], conditions: Iterable[Condition]) -> list[Overview]:
    """Return the runs that meet all conditions; one that does not have what is asked for does not meet it.

    Args:
        runs: with their settings, where a condition is about them.
        conditions: of a metric, the best value of a run is compared; after "last:" the newest one.

    Raises:
        InvalidConfig: no run has what a condition asks for; names what there is.
    """
    left = list(runs)
    for each in conditions:
        ask = field_getter(each.name, runs)
        left = [run for run in left if _meets(ask(run), each)]
    return left


def state_condition(state: str, runs: Sequence[Overview]) -> Condition:
    """Return the condition for a state, a shell pattern of one, or what some run said of its end.

    Raises:
        InvalidConfig: it is no state.
    """
    if not any(fnmatchcase(known, state) for known in (*STATES, *(run.state for run in runs))):
        near = difflib.get_close_matches(state, STATES, n=1)
        raise InvalidConfig(
            f"There is no state {state!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
            fix=f"There are {', '.join(STATES)}.",
        )
    return Condition(name="state", sign="=", value=state)


def sort_runs(runs: Sequence[Overview], by: str, *, reverse: bool = False) -> list[Overview]:
    """Sort runs: newest first by "started", best first by a metric, else upwards; those without a value come last.

    Args:
        runs: with their settings, where they are to be sorted by one.
        by: a name in `FIELDS`, a metric, or a setting.
        reverse: the other way round.

    Raises:
        InvalidConfig: no run has it.
    """
    ask = field_getter(by, runs)
    keyed = [(ask(run), run) for run in runs]
    present = [pair for pair in keyed if not _is_missing(pair[0])]
    downwards = by == "started" or (by not in FIELDS and metric_mode(by.removeprefix(_LAST), runs) == "max")
    texts = any(isinstance(value, str) or not isinstance(value, int | float) for value, _ in present)
    present.sort(key=lambda pair: str(pair[0]) if texts else pair[0], reverse=downwards != reverse)
    return [run for _, run in present] + [run for value, run in keyed if _is_missing(value)]


def field_getter(name: str, runs: Sequence[Overview]) -> Callable[[Overview], Any]:
    """Return what reads a field, a metric or a setting of a run, None where the run does not have it.

    Raises:
        InvalidConfig: no run has it; names the nearest of what there is.
    """
    if name in FIELDS:
        return FIELDS[name]
    metric = name.removeprefix(_LAST)
    if any(metric in run.record.get("last", ()) for run in runs):
        mode = metric_mode(metric, runs)
        if name.startswith(_LAST) or mode is None:
            return lambda run: _value_or_none(run.last(metric))
        return lambda run: _value_or_none(run.best(metric, mode))
    if not runs or any(name in run.facts for run in runs):
        return lambda run: run.facts.get(name)
    raise unknown_name_error(name, runs)


def unknown_name_error(name: str, runs: Sequence[Overview]) -> InvalidConfig:
    """Say that no run has a field, metric or setting of that name, and which there are."""
    metrics = dict.fromkeys(metric for run in runs for metric in run.metrics)
    settings = dict.fromkeys(setting for run in runs for setting in run.facts)
    near = difflib.get_close_matches(name, [*metrics, *FIELDS, *settings], n=1)
    return InvalidConfig(
        f"No run has {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
        fix=f"There are the metrics {', '.join(metrics) or '(none)'}; {', '.join(FIELDS)}; and settings such as "
        "config.optim.lr and options.width.",
    )


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _value_or_none(point: Any) -> float | None:
    return point.value if point else None


def _meets(found: Any, wanted: Condition) -> bool:
    if found is None:
        return False
    number = _parse_number(wanted.value)
    if wanted.sign in _OPERATORS:
        told = None if isinstance(found, str | bool) else _parse_number(found)
        return told is not None and _OPERATORS[wanted.sign](told, number)
    if isinstance(found, int | float) and not isinstance(found, bool) and number is not None:
        same = found == number or (math.isnan(found) and math.isnan(number))
    else:
        text = str(found).lower() if isinstance(found, bool) else str(found)
        same = fnmatchcase(text, wanted.value)
    return same == (wanted.sign != "!=")


def _parse_date(date: str) -> str:
    """Turn a date, in the time of this machine, into seconds since 1970; what is none stays as it is."""
    try:
        return str(datetime.fromisoformat(date).timestamp())
    except (ValueError, OverflowError, OSError):
        return date


def _parse_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
