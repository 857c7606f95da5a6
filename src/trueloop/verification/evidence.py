"""Define `Evidence`, the result of a proof: a verdict, a message with the numbers, the cause, and charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, cast


class Verdict(StrEnum):
    """Outcome of a proof."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_APPLICABLE = "not applicable"
    """The property makes no sense for the target, or the target lacks a field that the proof needs."""
    NOT_JUDGED = "not judged"
    """The user's code raised an error, or the time was up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line chart over updates or a similar count."""

    title: str
    lines: Mapping[str, Sequence[float]]
    """Name of a line -> its values; the first value is at x = 0."""
    x_label: str = "update"
    """Label of the x axis."""
    level: float | None = None
    """Value that the curve should reach, drawn as a dotted line; None = no such line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A bar chart of a few numbers."""

    title: str
    values: Mapping[str, float]
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A matrix of the influence of each column on each row, 0 = none."""

    title: str
    rows: str
    """Meaning of a row: "output of sample"."""
    columns: str
    """Meaning of a column: "input of sample"."""
    labels: Sequence[int]
    """Labels of the rows and, in the same order, of the columns."""
    values: Sequence[Sequence[float]]
    """Influence by row and column."""
    wrong: Sequence[tuple[int, int]] = ()
    """Row and column, from 0, of each value that should be 0 but is not."""


Chart = Curve | Bars | Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Result of one proof.

    Evidence is true if the property holds, so ``assert trueloop.verify.overfits_one_batch(...)`` is a test.
    """

    verdict: Verdict
    message: str
    """What was observed, with the numbers."""
    proof: str = ""
    """Name of the proof: "overfits-one-batch"."""
    title: str = ""
    cause: str = ""
    """Parameter, sample, position or module that breaks the property; "" if the property holds."""
    fix: str = ""
    """How to make the property hold; "" if it holds."""
    notes: tuple[str, ...] = ()
    """Further facts that do not affect the verdict."""
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    charts: tuple[Chart, ...] = ()
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.verdict is Verdict.HOLDS

    @property
    def ok(self) -> bool:
        """True if the property holds or does not apply."""
        return self.verdict in (Verdict.HOLDS, Verdict.NOT_APPLICABLE)

    def __repr__(self) -> str:
        sentences = [self.message, *self.notes, self.fix]
        return f"<{self.proof or 'proof'}: {self.verdict}. {' '.join(sentence for sentence in sentences if sentence)}>"

    def as_dict(self) -> dict[str, Any]:
        """Return the evidence as a JSON-ready dictionary; non-finite numbers are strings such as "nan"."""
        return {
            "proof": self.proof,
            "title": self.title,
            "verdict": str(self.verdict),
            "message": self.message,
            "cause": self.cause,
            "fix": self.fix,
            "notes": list(self.notes),
            "numbers": _json_ready(self.numbers),
            "charts": [_chart_json(chart) for chart in self.charts],
            "seconds": round(self.seconds, 4),
        }


def holds(message: str, **details: Any) -> Evidence:
    """Return evidence that the property holds; ``details`` are further fields of `Evidence`."""
    return Evidence(verdict=Verdict.HOLDS, message=message, **details)


def broken(message: str, *, cause: str, fix: str, **details: Any) -> Evidence:
    """Return evidence that the property is broken; ``details`` are further fields of `Evidence`."""
    return Evidence(verdict=Verdict.BROKEN, message=message, cause=cause, fix=fix, **details)


class NotApplicable(Exception):
    """A proof does not apply to the target; the message says why, for example which field is missing."""


class NotJudged(Exception):
    """A proof cannot decide whether the property holds; the message says why."""


def _json_ready(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _json_ready(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json_ready(item) for item in cast("Sequence[Any]", value)]
    return value


def _chart_json(chart: Chart) -> dict[str, Any]:
    return {"kind": type(chart).__name__.lower()} | {
        field.name: _json_ready(getattr(chart, field.name)) for field in fields(chart)
    }
