"""What a proof returns: a verdict, the sentence with the numbers, what is at fault, and what to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a proof ended."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_APPLICABLE = "not applicable"
    """The subject has no such property, or does not say enough to tell."""
    NOT_JUDGED = "not judged"
    """The subject's own code raised, or time was up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One or several lines over updates or the like."""

    title: str
    lines: Mapping[str, Sequence[float]]
    """Name -> values, the first at x = 0."""
    x_label: str = "update"
    """What x counts."""
    level: float | None = None
    """Where a dotted line is drawn: what the curve should reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A few numbers side by side."""

    title: str
    values: Mapping[str, float]
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How strongly each column acts on each row, 0 where it does not."""

    title: str
    rows: str
    """What a row is: "output of sample"."""
    columns: str
    """What a column is: "input of sample"."""
    labels: Sequence[int]
    """The number of each row and column."""
    values: Sequence[Sequence[float]]
    """Row by row."""
    wrong: Sequence[tuple[int, int]] = ()
    """Row and column, counted from 0, of what should be 0 and is not."""


Chart = Curve | Bars | Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How one proof ended, and why.

    True in a condition where the property holds, so that ``assert trueloop.verify.overfits_one_batch(...)`` is a test.
    """

    verdict: Verdict
    message: str
    """What was seen, with its numbers."""
    proof: str = ""
    """The proof's name: "overfits-one-batch"."""
    title: str = ""
    cause: str = ""
    """The parameter, sample, position or module at fault; empty where nothing is."""
    fix: str = ""
    """What to do about it; empty where nothing is broken."""
    notes: tuple[str, ...] = ()
    """What else is worth knowing, though it decides nothing."""
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    charts: tuple[Chart, ...] = ()
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.verdict is Verdict.HOLDS

    @property
    def ok(self) -> bool:
        """True where nothing is broken and nothing was left unjudged."""
        return self.verdict in (Verdict.HOLDS, Verdict.NOT_APPLICABLE)

    def __repr__(self) -> str:
        parts = [self.message, *self.notes, self.fix]
        return f"<{self.proof or 'proof'}: {self.verdict}. {' '.join(part for part in parts if part)}>"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as data for JSON; a number that JSON cannot hold becomes its name: "nan"."""
        return {
            "proof": self.proof,
            "title": self.title,
            "verdict": str(self.verdict),
            "sentence": self.message,
            "fault": self.cause,
            "fix": self.fix,
            "remarks": list(self.notes),
            "numbers": {name: _json_number(value) for name, value in self.numbers.items()},
            "pictures": [_chart_json(picture) for picture in self.charts],
            "seconds": round(self.seconds, 4),
        }


class NotApplicable(Exception):
    """The subject has no such property, or does not say enough to tell; the message says which."""


class NotJudged(Exception):
    """Nothing can be said; the message says why."""


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _chart_json(picture: Chart) -> dict[str, Any]:
    kind = type(picture).__name__.lower()
    if isinstance(picture, Curve):
        lines = {name: [_json_number(value) for value in line] for name, line in picture.lines.items()}
        return {"kind": kind, "title": picture.title, "along": picture.x_label, "level": picture.level, "lines": lines}
    if isinstance(picture, Bars):
        values = {name: _json_number(value) for name, value in picture.values.items()}
        return {"kind": kind, "title": picture.title, "unit": picture.unit, "values": values}
    return {
        "kind": kind,
        "title": picture.title,
        "rows": picture.rows,
        "columns": picture.columns,
        "labels": list(picture.labels),
        "values": [[_json_number(value) for value in row] for row in picture.values],
        "wrong": [list(place) for place in picture.wrong],
    }
