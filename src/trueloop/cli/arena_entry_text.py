"""Format entries of the arena as text: settings, scores over all seeds, outcome."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trueloop.cli.columns import align_columns, terminal_width
from trueloop.core.formatting import format_count, format_float
from trueloop.lab.arena.entry import Entry, parse_entry
from trueloop.lab.arena.leaderboard import Row, State
from trueloop.lab.arena.ranking import CRITERIA, Criterion, Spread, Standing

WIDE = 120  # minimum number of terminal columns for showing all three scores in the leaderboard
COLUMN_TITLES: Mapping[Criterion, str] = {"updates": "updates", "examples": "examples", "time": "time per example"}


def format_entry_settings(entry: Entry) -> str:
    """Return the settings that differ from the defaults: "adamw lr 0.01 batch 64"."""
    other_settings = {
        name: value for name, value in entry.non_default_settings().items() if name not in ("optimizer", "lr", "batch")
    }
    first = [entry.optimizer, f"lr {entry.lr:g}", f"batch {entry.batch}"]
    return " ".join([*first, *(f"{name} {_value(value)}" for name, value in other_settings.items())])


def format_spread(value: Spread | None, digits: int = 3) -> str:
    """Return the median and the range over the seeds: "79 (50 to 101)"."""
    if value is None:
        return "-"
    return f"{_number(value.median, digits)} ({_number(value.lowest, digits)} to {_number(value.highest, digits)})"


def ranking_table(rows: Sequence[Standing], by: Criterion) -> str:
    """Return the leaderboard as a table."""
    width = terminal_width()
    order: list[Criterion] = [by, *(other for other in CRITERIA if other != by and (width is None or width >= WIDE))]
    cells = [
        [
            str(row.rank) if row.rank is not None else "",
            row.name,
            *(format_spread(row.score(each)) for each in order),
            str(row.seeds),
            str(row.ids[0]),
            f"{_remark(row)}{format_entry_settings(parse_entry(json.loads(row.config)))}",
        ]
        for row in rows
    ]
    head = ["", "name", *(COLUMN_TITLES[each] for each in order), "seeds", "entry", "settings"]
    return "\n".join(
        align_columns(
            head,
            cells,
            right={0, *range(2, len(head) - 1)},
            never_cut={0, 1, 2, len(head) - 3, len(head) - 2},
            width=width,
        )
    )


def format_outcome(row: Row) -> str:
    """Return the outcome of an entry as a sentence."""
    reached = [trial.updates for trial in row.trials if trial.end == "reached"]
    if row.state == State.REACHED and reached:
        median = sorted(reached)[len(reached) // 2]
        return f"Reached the target on all {len(reached)} seeds; median: {format_count(median, 'update')}."
    if row.state == State.DISQUALIFIED:
        return f"Disqualified: the sanitizer found {row.why}"
    return row.why or str(row.state)


def seeds_table(row: Row) -> str:
    """Return a table of the runs of an entry, with one row per seed."""
    cells = [
        [
            str(trial.seed), trial.end, str(trial.updates), str(trial.examples), f"{trial.accuracy:.1%}",
            format_float(trial.time) if trial.time is not None else "-", trial.digest,
        ]
        for trial in row.trials
    ]  # fmt: skip
    head = ["seed", "outcome", "updates", "examples", "held out", "time per example", "weights"]
    return "\n".join(align_columns(head, cells, right={0, 2, 3, 4, 5}, width=terminal_width()))


def as_record(row: Row) -> dict[str, Any]:
    """Return the `--json` record of an entry."""
    return {**asdict(row), "config": json.loads(row.config), "state": str(row.state)}


def _remark(row: Standing) -> str:
    if not row.confirmed:
        return "not confirmed, replay it: "
    if row.disqualified:
        return f"disqualified, {row.disqualified}: "
    return f"failed on {row.missed} of {row.seeds} seeds: " if row.missed else ""


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float, digits: int) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else format_float(value, digits)
