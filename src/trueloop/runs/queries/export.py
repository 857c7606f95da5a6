"""Export a run for other programs as one CSV table or one JSON object.

The CSV has a row per update, with the columns of `UpdateRow`, and "lr/1" for the learning rate of a second parameter
group. The row of an update also has the evaluations after it, with one column per split and metric ("val/loss"); an
evaluation without an update row has its own row. Non-finite numbers are nan, inf and -inf; in JSON they are strings,
as in the journal.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TextIO, cast

from trueloop.core.formatting import replace_unprintable
from trueloop.runs.history import History, UpdateColumns
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.queries.overview import Overview, metric_points

_FORMULA_STARTS = ("=", "+", "-", "@")  # a spreadsheet would evaluate a title that starts with one of these


def write_csv(history: History, file: TextIO) -> None:
    """Write updates and evaluations as one table, with the columns that the module describes."""
    columns = _columns(history.updates)
    names = metric_points(history.evaluations)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*columns, *map(_column_title, names)])
    for row, metrics in _rows(history, columns):
        writer.writerow([*(_cell(value) for value in row), *(_cell(metrics.get(name)) for name in names)])


def write_json(overview: Overview, history: History, file: TextIO) -> None:
    """Write the complete history of a run as one line of strict JSON, one update at a time."""
    columns = _columns(history.updates)
    head = {"run": overview.as_json(), "started": asdict(history.started)}
    file.write(f'{encode_line(head)[:-2]},"updates":[')
    for number, row in enumerate(zip(*columns.values(), strict=True)):
        file.write(("," if number else "") + encode_line(dict(zip(columns, row, strict=True)))[:-1])
    end_fields = {
        "evaluations": list(map(asdict, history.evaluations)),
        "checkpoints": list(map(asdict, history.checkpoints)),
        "notes": list(map(asdict, history.notes)),
        "end": asdict(history.end) if history.end else None,
    }
    file.write(f"],{encode_line(end_fields)[1:]}")


def _columns(updates: UpdateColumns) -> dict[str, Sequence[Any]]:
    """Return the columns by name; "lr/1" is the learning rate of the second parameter group."""
    names = [field.name for field in fields(updates) if field.name != "rates"]
    rates = {f"lr/{group}": column for group, column in enumerate(updates.rates) if group}
    return {name: cast("Sequence[Any]", getattr(updates, name)) for name in names} | rates


def _rows(history: History, columns: Mapping[str, Sequence[Any]]) -> Iterator[tuple[list[Any], dict[str, float]]]:
    metrics_by_update: dict[int, dict[str, float]] = {}
    epochs: dict[int, int] = {}
    for evaluation in history.evaluations:
        epochs[evaluation.update] = evaluation.epoch
        row = metrics_by_update.setdefault(evaluation.update, {})
        row |= {f"{evaluation.split}/{name}": value for name, value in evaluation.metrics.items()}
    row_of_update = {update: k for k, update in enumerate(history.updates.update)}
    for update in sorted(row_of_update.keys() | metrics_by_update.keys()):
        if update in row_of_update:
            yield [column[row_of_update[update]] for column in columns.values()], metrics_by_update.get(update, {})
        else:
            values = {"update": update, "epoch": epochs[update]}
            yield [values.get(name) for name in columns], metrics_by_update[update]


def _column_title(name: str) -> str:
    title = replace_unprintable(name)
    return f"'{title}" if title.startswith(_FORMULA_STARTS) else title


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return value
