"""Filter and sort runs: `val/loss<0.1`, `recipe=digits`, `config.optim.lr>=0.001`."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import did_you_mean
from trueloop.runs.queries.overview import STATES, Overview
from trueloop.runs.queries.ranking import metric_mode

_CONDITION = re.compile(r"(?P<name>[^<>=!]+?)\s*(?P<operator><=|>=|!=|==|=|<|>)\s*(?P<value>.*)", re.DOTALL)
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
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
"""Fields of every run; filters also accept the names of metrics and settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A filter that compares a field, metric or setting of a run with a value."""

    name: str
    operator: str
    """One of "=", "==", "!=", "<", "<=", ">" and ">="."""
    value: str


def parse_condition(text: str) -> Condition:
    """Parse one filter.

    Raises:
        InvalidConfig: the text has no operator, or the operator needs a number and the value is not a number.
    """
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise InvalidConfig(
            f"The filter {text!r} has no comparison.",
            fix="Write a name, one of = != < <= > >=, and a value: 'val/loss<0.1', 'recipe=digits', 'name=digits-*'.",
        )
    name, value = match["name"].strip(), match["value"]
    if name == "started":
        value = _parse_date(value)
    if match["operator"] in _ORDERINGS and _parse_number(value) is None:
        raise InvalidConfig(
            f"The filter {text!r} compares with {value!r}, which is not a number.",
            fix="Compare text with = or !=, and start times with a date: 'started>=2026-01-31'.",
        )
    return Condition(name=name, operator=match["operator"], value=value)


def filter_runs(runs: Sequence[Overview], conditions: Iterable[Condition]) -> list[Overview]:
    """Return the runs that meet all conditions; a run that lacks a field does not meet a condition on that field.

    Args:
        runs: overviews, loaded with their settings if a condition is about a setting.
        conditions: the name of a metric means its best value in a run; with the prefix "last:", its newest value.

    Raises:
        InvalidConfig: no run has the field of a condition; the message lists the available fields.
    """
    remaining = list(runs)
    for condition in conditions:
        get_field = field_getter(condition.name, runs)
        remaining = [run for run in remaining if _meets(get_field(run), condition)]
    return remaining


def state_condition(state: str, runs: Sequence[Overview]) -> Condition:
    """Return the condition for a state: one of `STATES`, the state of a run, or a shell pattern.

    Raises:
        InvalidConfig: the pattern matches no state.
    """
    if not any(fnmatchcase(known_state, state) for known_state in (*STATES, *(run.state for run in runs))):
        hint = did_you_mean(state, STATES)
        raise InvalidConfig(f"There is no state {state!r}.", fix=f"{hint}The states are {', '.join(STATES)}.")
    return Condition(name="state", operator="=", value=state)


def sort_runs(runs: Sequence[Overview], by: str, *, reverse: bool = False) -> list[Overview]:
    """Sort runs: newest first by "started", best first by a metric, else ascending; runs without a value come last.

    Args:
        runs: overviews, loaded with their settings if ``by`` is a setting.
        by: a name in `FIELDS`, a metric, or a setting.
        reverse: True to reverse the order.

    Raises:
        InvalidConfig: no run has the field.
    """
    get_field = field_getter(by, runs)
    pairs = [(get_field(run), run) for run in runs]
    sortable = [pair for pair in pairs if not _is_missing(pair[0])]
    is_descending = by == "started" or (by not in FIELDS and metric_mode(by.removeprefix(_LAST), runs) == "max")
    all_numbers = all(isinstance(value, int | float) for value, _ in sortable)
    sortable.sort(key=lambda pair: pair[0] if all_numbers else str(pair[0]), reverse=is_descending != reverse)
    return [run for _, run in sortable] + [run for value, run in pairs if _is_missing(value)]


def field_getter(name: str, runs: Sequence[Overview]) -> Callable[[Overview], Any]:
    """Return a function that gets a field, metric or setting of a run, or None if the run does not have it.

    Raises:
        InvalidConfig: no run has this field, metric or setting; the message names the most similar name.
    """
    if name in FIELDS:
        return FIELDS[name]
    metric = name.removeprefix(_LAST)
    if any(metric in run.metrics for run in runs):
        mode = metric_mode(metric, runs)
        if name.startswith(_LAST) or mode is None:
            return lambda run: _value_or_none(run.last(metric))
        return lambda run: _value_or_none(run.best(metric, mode))
    if not runs or any(name in run.settings for run in runs):
        return lambda run: run.settings.get(name)
    raise unknown_name_error(name, runs)


def unknown_name_error(name: str, runs: Sequence[Overview]) -> InvalidConfig:
    """Return the error that no run has a field, metric or setting of this name."""
    metrics = dict.fromkeys(metric for run in runs for metric in run.metrics)
    settings = dict.fromkeys(setting for run in runs for setting in run.settings)
    hint = did_you_mean(name, [*metrics, *FIELDS, *settings])
    return InvalidConfig(
        f"No run has {name!r}.",
        fix=f"{hint}Use a metric ({', '.join(metrics) or 'none'}), a field ({', '.join(FIELDS)}) or a setting such as "
        "config.optim.lr and options.width.",
    )


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _value_or_none(point: Any) -> float | None:
    return point.value if point else None


def _meets(value: Any, condition: Condition) -> bool:
    if value is None:
        return False
    number = _parse_number(condition.value)
    if condition.operator in _ORDERINGS:
        compared = None if isinstance(value, str | bool) else _parse_number(value)
        return compared is not None and _ORDERINGS[condition.operator](compared, number)
    if isinstance(value, int | float) and not isinstance(value, bool) and number is not None:
        same = value == number or (math.isnan(value) and math.isnan(number))
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        same = fnmatchcase(text, condition.value)
    return same == (condition.operator != "!=")


def _parse_date(date: str) -> str:
    """Convert a date in local time to seconds since 1970; return any other text unchanged."""
    try:
        return str(datetime.fromisoformat(date).timestamp())
    except (ValueError, OverflowError, OSError):
        return date


def _parse_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
