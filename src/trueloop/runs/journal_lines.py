"""Encode the events of a run as lines of strict JSON, and decode them.

Every line has an "event", the fields of the event's class in `core.protocols`, and the "time" at which it was reported.
JSON has no NaN or infinity: they are written as the strings "nan", "inf" and "-inf", and parsed back to floats in
fields that hold numbers.

Updates that are reported together share one line without a time. The line has "rows" updates, starting at "update";
each field is a list with one value per update, or a single value that all updates share. Such a line takes a
third of the space of one line per update.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, cast

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted, UpdateRow, UpdatesDone

SCHEMA = 2
READABLE_SCHEMAS = (1, 2)
"""Schema 1 has one line with the event "update" per update, with the fields of its row."""
UPDATE_EVENTS = ("updates", "update")
"""Values of "event" in lines that hold updates."""

SingleEvent = RunStarted | Evaluated | CheckpointSaved | Notice | RunEnded
"""Every event except `UpdatesDone`, which may take several lines."""

_CLASSES: Mapping[str, type[SingleEvent]] = {
    "run_started": RunStarted,
    "evaluated": Evaluated,
    "checkpoint_saved": CheckpointSaved,
    "notice": Notice,
    "run_ended": RunEnded,
}
_NAMES = {event_class: name for name, event_class in _CLASSES.items()}

# A value of a type that JSON lacks (a path, an enum in a recipe's options) is written as its str().
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=str)


def encode_line(record: Mapping[str, Any] | Sequence[Any]) -> str:
    """Encode a record, or a list of records, as one line of strict JSON, including the newline."""
    try:
        return _ENCODER.encode(record) + "\n"
    except ValueError:  # the record contains a non-finite number, which is rare
        return _ENCODER.encode(_replace_nonfinite(record)) + "\n"


def event_record(event: SingleEvent, time: float) -> dict[str, Any]:
    """Convert an event to a record; ``time`` is in seconds since 1970."""
    body = {field.name: getattr(event, field.name) for field in fields(event)}
    return {"event": _NAMES[type(event)], "time": round(time, 3)} | body


def update_records(done: UpdatesDone) -> list[dict[str, Any]]:
    """Convert updates to records, one per sequence of consecutive updates; seconds are rounded to microseconds.

    Cost: 2 µs per update.
    """
    rows = list(done.rows)
    breaks = [k for k, (row, before) in enumerate(zip(rows[1:], rows, strict=False), 1) if row[0] != before[0] + 1]
    ends = zip([0, *breaks], [*breaks, len(rows)], strict=True)
    records = [_columnar_record(rows[start:stop]) for start, stop in ends if start < stop]
    if records and done.memory_mib is not None:
        records[-1]["memory_mib"] = round(done.memory_mib, 1)
    if records and done.layers:
        records[-1]["layers"] = {layer: float(f"{norm:.4g}") for layer, norm in done.layers.items()}
    return records


def _columnar_record(rows: Sequence[UpdateRow]) -> dict[str, Any]:
    columns = dict(zip(UpdateRow._fields, zip(*rows, strict=True), strict=True))
    for name in ("wait_s", "total_s"):
        columns[name] = tuple([round(seconds, 6) for seconds in columns[name]])
    if not any(columns["rates"]):
        del columns["rates"]
    first = columns.pop("update")[0]
    shared = {name: column[0] if len(set(column)) == 1 else column for name, column in columns.items()}
    return {"event": "updates", "update": first, "rows": len(rows), **shared}


def expand_column(value: Any, count: int) -> Sequence[Any]:
    """Expand a field of ``count`` updates to one value per update.

    Raises:
        ValueError: the field is a list of another length.
    """
    if not isinstance(value, list):
        return [value] * count
    values = cast("list[Any]", value)
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count} updates")
    return values


def truncate_updates(record: Mapping[str, Any], update: int) -> dict[str, Any] | None:
    """Return the part of an updates record up to ``update``, inclusive; None if all its updates are later.

    Raises:
        ValueError: a field has another number of values than the record has rows.
    """
    first, count = int(record["update"]), int(record.get("rows", 1))
    rows_to_keep = min(count, update - first + 1)
    if rows_to_keep >= count:
        return dict(record)
    if rows_to_keep < 1:
        return None
    list_fields = [name for name, value in record.items() if isinstance(value, list) and name != "rates"]
    shortened: dict[str, Any] = {name: list(expand_column(record[name], count))[:rows_to_keep] for name in list_fields}
    if "rates" in record:
        shortened["rates"] = list(group_rates(record, count))[:rows_to_keep]
    shorter = {**record, **shortened, "rows": rows_to_keep}
    for name in ("memory_mib", "layers"):  # measured at the last row
        shorter.pop(name, None)
    return shorter


def group_rates(record: Mapping[str, Any], count: int) -> Sequence[Sequence[float]]:
    """Return, for each update of a record, the learning rates of all parameter groups; [] if all rates are equal.

    Raises:
        ValueError: the number of values is not ``count``.
    """
    rates = record.get("rates") or []
    by_update = rates if rates and isinstance(rates[0], list) else [rates] * count
    if len(by_update) != count:
        raise ValueError(f"{len(by_update)} rates for {count} updates")
    return by_update


def parse_event(record: Mapping[str, Any]) -> SingleEvent:
    """Parse a record into its event.

    Raises:
        KeyError: the event or one of its fields is missing or unknown.
        ValueError, TypeError: a field has the wrong type.
    """
    event_class = _CLASSES[record["event"]]
    # Older journals lack the fields that were added later, which have defaults.
    names = [field.name for field in fields(event_class) if field.default is MISSING or field.name in record]
    values = {name: record[name] for name in names}
    for name, parse in _FIELD_PARSERS.items():
        if name in values:
            values[name] = parse(values[name])
    return cast("Callable[..., SingleEvent]", event_class)(**values)


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in cast("Sequence[Any]", value)]
    return value


def _parse_floats(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in _require_mapping(metrics).items()}


def _require_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    return cast("dict[str, Any]", value)


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _require_int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def _restore_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restore_nonfinite(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_restore_nonfinite(item) for item in cast("list[Any]", value)]
    return float(value) if value in {"nan", "inf", "-inf"} else value


# Strings in facts and details are not converted to numbers: a class may be called "nan".
_FIELD_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "metrics": _parse_floats,
    "tables": _restore_nonfinite,
    "seconds": float,
    "blocked_s": float,
    "update": _require_int,
    "start_update": _require_int,
    "epoch": _require_int,
    "epochs": _require_int,
    "updates": lambda value: value if value is None else _require_int(value),
    "facts": _require_mapping,
    "details": _require_mapping,
    **dict.fromkeys(("name", "split", "path", "kind", "message", "reason"), _require_text),
}
