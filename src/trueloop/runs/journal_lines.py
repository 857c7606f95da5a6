"""One line of a journal: an event as strict JSON, and back.

Every line has an "event" and the field names of the record in `ground.seams` it stands for, and the "time" it was
reported. JSON knows no NaN and no infinity: they are written as the strings "nan", "inf" and "-inf", and read back as
floats wherever a field holds numbers.

Updates that were reported together are one line, without a time: "rows" of them from "update" on, each field a list
with a value for each, or the one value that all of them share. That is a third of what a line for each would take.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, cast

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted, UpdateRow, UpdatesDone

SCHEMA = 2
READABLE = (1, 2)
"""In 1, every update has a line of its own, "update", with the fields of its row."""
UPDATES = ("updates", "update")
"""What a line that tells of updates is called."""

SingleEvent = RunStarted | Evaluated | CheckpointSaved | Notice | RunEnded
"""Every event but `UpdatesDone`, which is many lines."""

_CLASSES: Mapping[str, type[SingleEvent]] = {
    "run_started": RunStarted,
    "evaluated": Evaluated,
    "checkpoint_saved": CheckpointSaved,
    "noted": Notice,
    "run_ended": RunEnded,
}
_NAMES = {event_class: name for name, event_class in _CLASSES.items()}

# What JSON does not know (a path, an enum in a recipe's options) is written as str() shows it.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=str)


def encode(record: Mapping[str, Any] | Sequence[Any]) -> str:
    """Write one record, or a list of them, as a line of strict JSON, newline included."""
    try:
        return _ENCODER.encode(record) + "\n"
    except ValueError:  # a NaN somewhere: rare, so only then is the record walked
        return _ENCODER.encode(_strict(record)) + "\n"


def event_record(event: SingleEvent, time: float) -> dict[str, Any]:
    """Lay an event out as a record; ``time`` is in seconds since 1970."""
    body = {field.name: getattr(event, field.name) for field in fields(event)}
    return {"event": _NAMES[type(event)], "time": round(time, 3)} | body


def update_records(done: UpdatesDone) -> list[dict[str, Any]]:
    """Lay updates out as records, one for each stretch of consecutive ones; seconds are rounded to the microsecond.

    Cost: 2 us for each update.
    """
    rows = list(done.rows)
    breaks = [k for k, (row, before) in enumerate(zip(rows[1:], rows, strict=False), 1) if row[0] != before[0] + 1]
    ends = zip([0, *breaks], [*breaks, len(rows)], strict=True)
    records = [_stretch(rows[start:stop]) for start, stop in ends if start < stop]
    if records and done.memory_mib is not None:
        records[-1]["memory_mib"] = round(done.memory_mib, 1)
    if records and done.layers:
        records[-1]["layers"] = {layer: float(f"{norm:.4g}") for layer, norm in done.layers.items()}
    return records


def _stretch(rows: Sequence[UpdateRow]) -> dict[str, Any]:
    columns = dict(zip(UpdateRow._fields, zip(*rows, strict=True), strict=True))
    for name in ("wait_s", "total_s"):
        columns[name] = tuple([round(seconds, 6) for seconds in columns[name]])
    if not any(columns["rates"]):
        del columns["rates"]
    first = columns.pop("update")[0]
    shared = {name: column[0] if len(set(column)) == 1 else column for name, column in columns.items()}
    return {"event": "updates", "update": first, "rows": len(rows), **shared}


def spread(value: Any, count: int) -> Sequence[Any]:
    """Return a field of so many updates as a value for each.

    Raises:
        ValueError: it is a list of another length.
    """
    if not isinstance(value, list):
        return [value] * count
    several = cast("list[Any]", value)
    if len(several) != count:
        raise ValueError(f"{len(several)} values for {count} updates")
    return several


def first_updates(record: Mapping[str, Any], update: int) -> dict[str, Any] | None:
    """Return a line of updates as far as an update; None where all of them are later.

    Raises:
        ValueError: it is not made of as many values as it says.
    """
    first, count = int(record["update"]), int(record.get("rows", 1))
    kept = min(count, update - first + 1)
    if kept >= count:
        return dict(record)
    if kept < 1:
        return None
    lists = [name for name, value in record.items() if isinstance(value, list) and name != "rates"]
    cut: dict[str, Any] = {name: list(spread(record[name], count))[:kept] for name in lists}
    if "rates" in record:
        cut["rates"] = list(rates_of(record, count))[:kept]
    shorter = {**record, **cut, "rows": kept}
    for name in ("memory_mib", "layers"):  # of the last of them
        shorter.pop(name, None)
    return shorter


def rates_of(record: Mapping[str, Any], count: int) -> Sequence[Sequence[float]]:
    """Return the rates of all groups for each update of a line; empty where they are all alike.

    Raises:
        ValueError: there are not as many.
    """
    rates = record.get("rates") or []
    several = rates if rates and isinstance(rates[0], list) else [rates] * count
    if len(several) != count:
        raise ValueError(f"{len(several)} rates for {count} updates")
    return several


def event_of(record: Mapping[str, Any]) -> SingleEvent:
    """Rebuild the event a record stands for.

    Raises:
        KeyError: the event or one of its fields is missing or unknown.
        ValueError, TypeError: a field holds something else than its kind.
    """
    event_class = _CLASSES[record["event"]]
    # A field that has a default was added later: older journals do without it.
    known = [field.name for field in fields(event_class) if field.default is MISSING or field.name in record]
    values = {name: record[name] for name in known}
    for name, revive in _REVIVE.items():
        if name in values:
            values[name] = revive(values[name])
    return cast("Callable[..., SingleEvent]", event_class)(**values)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _strict(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in cast("Sequence[Any]", value)]
    return value


def _floats(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in _mapping(metrics).items()}


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    return cast("dict[str, Any]", value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_numbers(each) for each in cast("list[Any]", value)]
    return float(value) if value in {"nan", "inf", "-inf"} else value


# facts and details stay as written: a class may well be called "nan".
_REVIVE: Mapping[str, Callable[[Any], Any]] = {
    "metrics": _floats,
    "tables": _numbers,
    "seconds": float,
    "blocked_s": float,
    "update": _whole,
    "start_update": _whole,
    "epoch": _whole,
    "epochs": _whole,
    "updates": lambda value: value if value is None else _whole(value),
    "facts": _mapping,
    "details": _mapping,
    **dict.fromkeys(("name", "split", "path", "kind", "message", "reason"), _text),
}
