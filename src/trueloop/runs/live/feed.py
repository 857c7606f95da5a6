"""A watched program's feed followed while it runs, in bounded memory; see `live.writer` for who writes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from trueloop.core.downsampling import DownsampledSeries
from trueloop.core.errors import InvalidData
from trueloop.core.json_text import parse_json
from trueloop.runs.live.columns import LayerColumns
from trueloop.runs.live.folder import FEED
from trueloop.runs.live.position_file import read_now, still_runs
from trueloop.runs.live.tail import Tail
from trueloop.runs.live.writer import FINDINGS, SCHEMA

SERIES: Final = 24  # names of series that are kept
POINTS: Final = 4096
LARGEST: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Where a watched program is."""

    seconds: float
    """Since it began."""
    updates: int
    state: str
    """"running", "finished", "failed" (its exit code is not 0) or "killed"."""
    code: int | None
    rate: Mapping[str, float] | None
    """Seconds of an update, and the shares of it by part."""


class FeedFollower:
    """What a watched program has told so far.

    Args:
        folder: the program's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tail = Tail(folder / FEED)
        self.problem = ""
        """Why nothing is read any more, in words."""
        self.about: dict[str, Any] = {}
        self.began = 0.0
        """Seconds since 1970."""
        self.series: dict[str, DownsampledSeries[float]] = {}
        self.layers = LayerColumns()
        self.findings: deque[dict[str, Any]] = deque(maxlen=FINDINGS)
        self.report: dict[str, Any] | None = None
        """What the program was told at its end."""
        self.excerpts: list[Any] = []
        """The lines of source that the error that ended it speaks of."""
        self.ended_words = ""
        self._names: list[str] = []
        self._moved = False

    @property
    def behind(self) -> bool:
        """More can be had by calling `advance` again, at once."""
        return not self.problem and self._moved and self.tail.behind > 0

    def advance(self) -> bool:
        """Take in what is new, or a piece of it; return whether there was anything. What is wrong is in ``problem``.

        Cost: 0.1 s at most.
        """
        self._moved = False
        if self.problem:
            return False
        try:
            lines = self.tail.advance()
            self._moved = bool(lines)
            for line in lines:
                self._take(parse_json(line))
        except InvalidData as error:
            self.problem = error.what
        except OSError as error:
            self.problem = f"The feed cannot be read: {error.strerror or error}."
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            self.problem = f"The feed makes no sense: {str(error)[:200] or type(error).__name__}."
        return self._moved

    def now(self) -> Now:
        """Look where the program is. What cannot be read says nothing."""
        told = read_now(self.folder)
        code = _whole(told.get("ended"))
        if code is not None:
            state = "finished" if code == 0 else "failed"
        else:
            state = "running" if still_runs(told) else "killed"
        rate: Any = told.get("rate") or (self.report or {}).get("rate")
        return Now(
            seconds=_float(told.get("s")),
            updates=_whole(told.get("updates")) or 0,
            state=state,
            code=code,
            rate={str(k): _float(v) for k, v in list(rate.items())[:8]} if isinstance(rate, dict) else None,
        )

    def _take(self, record: dict[str, Any]) -> None:
        match record["event"]:
            case "begun":
                if record["schema"] != SCHEMA:
                    raise InvalidData(f"The feed has schema {record['schema']!r}; this trueloop reads {SCHEMA}.")
                self.about, self.began = record, float(record["time"])
            case "numbers":
                self._take_numbers(record)
            case "finding":
                self.findings.append(record)
            case "ended":
                report = record.get("report")
                self.report = cast("dict[str, Any]", report) if isinstance(report, dict) else None
                self._take_report(self.report or {})
                excerpts = record.get("error_excerpts")
                self.excerpts = cast("list[Any]", excerpts) if isinstance(excerpts, list) else []
                self.ended_words = str(record.get("nothing") or "")
            case _:
                return  # of a newer trueloop

    def _take_report(self, report: Mapping[str, Any]) -> None:
        """The report has every series as a whole, also those of a program too short for a second write."""
        series: Mapping[str, Any] = report.get("series") or {}
        self.series = {name: each for name, each in self.series.items() if name not in series}
        self._take_numbers({"series": {name: [each["updates"], each["values"]] for name, each in series.items()}})
        layers: Mapping[str, Any] | None = report.get("layers")
        if layers:
            self.layers, names = LayerColumns(), [str(name) for name in layers["layers"]]
            for update, norms in zip(layers["updates"], zip(*layers["norms"], strict=True), strict=True):
                self.layers.add(_update(update), names, norms)

    def _take_numbers(self, record: Mapping[str, Any]) -> None:
        series: Mapping[str, Any] = record["series"]
        for name, (updates, values) in series.items():
            if name not in self.series:
                if len(self.series) >= SERIES:
                    continue
                self.series[name] = DownsampledSeries(POINTS)
            kept = self.series[name]
            for update, value in zip(updates, values, strict=True):
                kept.add(_update(update), float(value))
        if "layers" in record:
            self._names = [str(name) for name in record["layers"]]
        if "norms" in record:
            update, norms = record["norms"]
            self.layers.add(_update(update), self._names, norms)


def _update(value: Any) -> int:
    if not abs(int(value)) < LARGEST:
        raise ValueError("an update that no program comes to")
    return int(value)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < LARGEST else None


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else 0.0
