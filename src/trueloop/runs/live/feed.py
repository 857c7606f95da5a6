"""Read the feed of a watched program while the program runs, in bounded memory; `live.writer` writes the feed."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from trueloop.core.downsampling import DownsampledSeries, max_points
from trueloop.core.errors import InvalidData
from trueloop.core.json_text import parse_json
from trueloop.runs.live.columns import LayerNorms
from trueloop.runs.live.folder import FEED_NAME
from trueloop.runs.live.position_file import is_running, read_position
from trueloop.runs.live.tail import Tail
from trueloop.runs.live.writer import MAX_FINDINGS, SCHEMA

MAX_SERIES: Final = 24  # further series are ignored
MAX_COUNT: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatus:
    """The current status of a watched program."""

    seconds: float
    """Seconds since the program started."""
    updates: int
    state: str
    """State of the program: "running", "finished", "failed" (its exit code is not 0) or "killed"."""
    code: int | None
    """Exit code; None while the program runs, and if it was killed."""
    timing: Mapping[str, float] | None
    """Seconds per update, and the share of each phase; None if they are unknown."""


class FeedReader:
    """Reads the feed of one watched program incrementally.

    Args:
        folder: the program's folder below the live folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tail = Tail(folder / FEED_NAME)
        self.problem = ""
        """Why reading stopped; "" while the feed is readable."""
        self.program: dict[str, Any] = {}
        self.started_at = 0.0
        """Start time of the program, in seconds since 1970."""
        self.series: dict[str, DownsampledSeries[float]] = {}
        self.layers = LayerNorms()
        self.findings: deque[dict[str, Any]] = deque(maxlen=MAX_FINDINGS)
        self.report: dict[str, Any] | None = None
        """The sanitizer's report as JSON, which is written at the end of the program; None before that."""
        self.excerpts: list[Any] = []
        """Source excerpts of the error that ended the program."""
        self.end_summary = ""
        self._layer_names: list[str] = []
        self._read_something = False

    @property
    def has_more(self) -> bool:
        """True if another `poll` will read more immediately."""
        return not self.problem and self._read_something and self.tail.remaining > 0

    def poll(self) -> bool:
        """Read at most one chunk of new lines and return whether there were any; errors are stored in ``problem``.

        Cost: at most 0.1 s.
        """
        self._read_something = False
        if self.problem:
            return False
        try:
            lines = self.tail.read_lines()
            self._read_something = bool(lines)
            for line in lines:
                self._add_record(parse_json(line))
        except InvalidData as error:
            self.problem = error.what
        except OSError as error:
            self.problem = f"The feed cannot be read: {error.strerror or error}."
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            self.problem = f"The feed is invalid: {str(error)[:200] or type(error).__name__}."
        return self._read_something

    def status(self) -> ProgramStatus:
        """Read the current status of the program; unreadable values are replaced by defaults."""
        position = read_position(self.folder)
        code = _int_or_none(position.get("ended"))
        if code is not None:
            state = "finished" if code == 0 else "failed"
        else:
            state = "running" if is_running(position) else "killed"
        timing: Any = position.get("timing") or (self.report or {}).get("timing")
        items = list(cast("dict[Any, Any]", timing).items())[:8] if isinstance(timing, dict) else None
        return ProgramStatus(
            seconds=_float_or_zero(position.get("s")),
            updates=_int_or_none(position.get("updates")) or 0,
            state=state,
            code=code,
            timing=None if items is None else {str(name): _float_or_zero(value) for name, value in items},
        )

    def _add_record(self, record: dict[str, Any]) -> None:
        match record["event"]:
            case "started":
                if record["schema"] != SCHEMA:
                    raise InvalidData(f"The feed has schema {record['schema']!r}; this trueloop reads {SCHEMA}.")
                self.program, self.started_at = record, float(record["time"])
            case "numbers":
                self._add_numbers(record)
            case "finding":
                self.findings.append(record)
            case "ended":
                report = record.get("report")
                self.report = cast("dict[str, Any]", report) if isinstance(report, dict) else None
                self._add_report(self.report or {})
                excerpts = record.get("error_excerpts")
                self.excerpts = cast("list[Any]", excerpts) if isinstance(excerpts, list) else []
                self.end_summary = str(record.get("nothing") or "")
            case _:
                return  # an event of a newer trueloop

    def _add_report(self, report: Mapping[str, Any]) -> None:
        """Replace series by the report's, which are complete even if the program ended before the next write."""
        series: Mapping[str, Any] = report.get("series") or {}
        self.series = {name: values for name, values in self.series.items() if name not in series}
        columns = {name: (record["updates"], record["values"]) for name, record in series.items()}
        self._add_numbers({"series": columns})
        layers: Mapping[str, Any] | None = report.get("layer_gradient_norms")
        if layers:
            self.layers, names = LayerNorms(), [str(name) for name in layers["layers"]]
            for update, norms in zip(layers["updates"], zip(*layers["norms"], strict=True), strict=True):
                self.layers.add(_parse_update(update), names, norms)

    def _add_numbers(self, record: Mapping[str, Any]) -> None:
        series: Mapping[str, Any] = record["series"]
        for name, (updates, values) in series.items():
            if name not in self.series:
                if len(self.series) >= MAX_SERIES:
                    continue
                self.series[name] = DownsampledSeries(2 * max_points(name))
            for update, value in zip(updates, values, strict=True):
                self.series[name].add(_parse_update(update), float(value))
        if "layers" in record:
            self._layer_names = [str(name) for name in record["layers"]]
        if "norms" in record:
            update, norms = record["norms"]
            self.layers.add(_parse_update(update), self._layer_names, norms)


def _parse_update(value: Any) -> int:
    if not abs(int(value)) < MAX_COUNT:
        raise ValueError("an update number out of range")
    return int(value)


def _int_or_none(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < MAX_COUNT else None


def _float_or_zero(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < MAX_COUNT else 0.0
