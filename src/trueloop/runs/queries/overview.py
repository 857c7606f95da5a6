"""Summarise a run in a few numbers: progress, metrics, state, and why its journal cannot be read."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, cast

from trueloop.core.errors import InvalidData, RunFolderError, TrueloopError
from trueloop.core.json_text import parse_json
from trueloop.core.protocols import CheckpointSaved, Evaluated
from trueloop.runs.history import History, iter_leaves
from trueloop.runs.journal import JOURNAL_NAME, read_journal
from trueloop.runs.queries.running import is_training
from trueloop.runs.run_id import read_run_id

ROLLED_BACK = "rolled_back"
"""Kind of the note that a rollback writes to the new run's journal."""

STATES = (
    "running",
    "finished",
    "early_stop",
    "interrupted",
    "preempted",
    "failed",
    "killed",
    ROLLED_BACK,
    "unknown",
    "damaged",
    "empty",
)
"""States of a run: the end reason of its newest process; without an end, "running" if a process holds the lock,
"killed" if none does, "unknown" if locks do not work; "rolled_back" until a rolled back run continues; "damaged" if the
journal is invalid, "empty" if no run has started in it."""

# Keys of a record that the JSON output lacks or has in another form.
_INTERNAL_KEYS = ("lowest", "highest", "last", "end", "saved", "read")


class Point(NamedTuple):
    """One value of a metric, and the update and epoch of its evaluation."""

    value: float
    update: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The summary of one run; `read_record` describes the part that the index stores."""

    folder: str
    """Path of the run folder, as a string because creating 10,000 `Path` objects takes 50 ms."""
    record: Mapping[str, Any]
    """JSON-ready summary of the journal."""
    settings: Mapping[str, Any]
    """Settings and recipe options by dotted name: {"config.optim.lr": 0.001}; empty if they were not requested."""
    state: str
    """One of `STATES`."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.folder.rpartition("/")[2] if self.folder[-1:] not in ("/", ".", "") else self.path.resolve().name

    @property
    def problem(self) -> str:
        """Why the journal cannot be read; "" if it can be read."""
        return self.record.get("problem", "")

    @property
    def run_id(self) -> str:
        """The run id, 32 hexadecimal digits, the same for all processes of the run; "" if the journal is unreadable."""
        return self.record.get("run_id", "")

    @property
    def recipe(self) -> str:
        """Name of the recipe, or of the run of a `Trainer`."""
        return self.record.get("recipe", "")

    @property
    def started_at(self) -> float:
        """Start time of the first process, in seconds since 1970; 0 if the journal cannot be read."""
        return float(self.record.get("started_at", 0.0))

    @property
    def monitor(self) -> tuple[str, Literal["min", "max"]]:
        """The metric that decides which evaluation is best, and its mode."""
        metric, mode = self.record.get("monitor", ("val/loss", "min"))
        return metric, "max" if mode == "max" else "min"

    @property
    def metrics(self) -> Sequence[str]:
        """Names of all evaluated metrics: "val/loss"."""
        return list(self.record.get("last", ()))

    def last(self, metric: str) -> Point | None:
        """Return the newest value of a metric, which may be NaN or infinite."""
        return self._point("last", metric)

    def best(self, metric: str, mode: str) -> Point | None:
        """Return the lowest (mode "min") or highest finite value of a metric; of equal values, the earliest."""
        return self._point("lowest" if mode == "min" else "highest", metric)

    def as_json(self) -> dict[str, Any]:
        """Return the output of `--json`."""
        metric, mode = self.monitor
        best = self.record.get("lowest" if mode == "min" else "highest", {}).get(metric)
        public = {key: value for key, value in self.record.items() if key not in _INTERNAL_KEYS}
        return {
            "name": self.name,
            "path": self.folder,
            "state": self.state,
            **public,
            "monitor": {"metric": metric, "mode": mode},
            "best": best and {"metric": metric, **_point_json(best)},
            "last": {name: _point_json(point) for name, point in self.record.get("last", {}).items()},
        }

    def _point(self, key: str, metric: str) -> Point | None:
        point = self.record.get(key, {}).get(metric)
        return Point(float(point[0]), point[1], point[2]) if point else None


def read_overview(run_dir: Path) -> Overview:
    """Read the overview of a run; a damaged journal is reported by `Overview.problem`, never by an exception."""
    record, settings = read_record(run_dir)
    return make_overview(str(run_dir), record, settings)


def make_overview(folder: str, record: Mapping[str, Any], settings: Mapping[str, Any]) -> Overview:
    """Return the overview for a record and the settings of a run, with the current state of the run."""
    return Overview(folder=folder, record=record, settings=settings, state=_state(folder, record))


def read_record(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the record and the settings of a run, which depend only on its journal.

    Returns:
        Two JSON-ready mappings; for a journal that cannot be read, the record contains only "end" and "problem".

    Cost: the cost of `read_journal`.
    """
    try:
        history = read_journal(run_dir / JOURNAL_NAME)
        return _make_record(run_dir, history), flat_settings(history)
    except InvalidData as error:
        return {"end": "damaged", "problem": error.what}, {}
    except RunFolderError as error:
        return {"end": "empty", "problem": error.what}, {}
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        # A line is JSON and has every field, but with an invalid value: {"facts": 3}, an update number of 400 digits.
        return {"end": "damaged", "problem": f"{run_dir / JOURNAL_NAME} is invalid: {error!r}."}, {}


def flat_settings(history: History) -> dict[str, Any]:
    """Return settings and recipe options by dotted name: {"config.optim.lr": 0.001, "options.width": 8}."""
    return flatten({name: history.facts.get(name) or {} for name in ("config", "options")})


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested mappings into one mapping with dotted names; empty mappings are dropped."""
    return dict(iter_leaves(tree))


def monitored_metric(facts: Mapping[str, Any]) -> tuple[str, Literal["min", "max"]]:
    """Return the monitored metric and its mode from a run's facts; ("val/loss", "min") if the facts name none."""
    metric, mode = recorded_setting(facts, "monitor.metric"), recorded_setting(facts, "monitor.mode")
    return str(metric or "val/loss"), "max" if mode == "max" else "min"


def recorded_setting(facts: Mapping[str, Any], name: str) -> Any:
    """Return the value of a setting ("checkpoint.final") from a run's facts; None if the facts do not contain it."""
    value: Any = facts.get("config")
    for key in name.split("."):
        value = cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None
    return value


def metric_points(evaluations: Iterable[Evaluated]) -> dict[str, list[Point]]:
    """Group the values of evaluations by metric ("val/loss"), in the order of the evaluations."""
    points: dict[str, list[Point]] = {}
    for evaluation in evaluations:
        for name, value in evaluation.metrics.items():
            point = Point(value, evaluation.update, evaluation.epoch)
            points.setdefault(f"{evaluation.split}/{name}", []).append(point)
    return points


def _make_record(run_dir: Path, history: History) -> dict[str, Any]:
    facts, end, updates = history.facts, history.end, history.updates
    points = metric_points(history.evaluations)
    metric, mode = monitored_metric(facts)
    lowest, highest = dict[str, Point](), dict[str, Point]()
    for name, values in points.items():
        if finite := [point for point in values if math.isfinite(point.value)]:
            lowest[name] = min(finite, key=lambda point: point.value)
            highest[name] = max(finite, key=lambda point: point.value)
    best = (lowest if mode == "min" else highest).get(metric)
    last_note = history.notes[-1:] and (history.notes[-1].kind, history.notes[-1].update)
    is_rolled_back = last_note == (ROLLED_BACK, history.last_update)
    return {
        "run_id": read_run_id(run_dir / JOURNAL_NAME) or "",
        "recipe": str(facts.get("recipe") or history.started.name),
        "started_at": history.started_at,
        "end": str(end.reason) if end else ROLLED_BACK if is_rolled_back else "",
        "update": history.last_update,
        "updates": history.started.updates,
        "epoch": updates.epoch[-1] if len(updates) else 0,
        "epochs": history.started.epochs,
        "duration_s": end.seconds if end and history.processes == 1 else history.time_split().total,
        "processes": history.processes,
        "monitor": [metric, mode],
        "last": {name: values[-1] for name, values in points.items()},
        "lowest": lowest,
        "highest": highest,
        "best_checkpoint": _checkpoint_folder(history.checkpoints, best.update) if best else None,
        "last_checkpoint": _checkpoint_folder(history.checkpoints),
        "saved": _newest_checkpoint(history.checkpoints),
        "skipped": len(history.skipped),
    }


def _point_json(point: Sequence[Any]) -> dict[str, Any]:
    return {"value": point[0], "update": point[1], "epoch": point[2]}


def _newest_checkpoint(checkpoints: Sequence[CheckpointSaved]) -> list[Any]:
    """Return the update and folder of the newest recorded checkpoint."""
    return [checkpoints[-1].update, _checkpoint_folder(checkpoints)] if checkpoints else [-1, None]


def _checkpoint_folder(checkpoints: Sequence[CheckpointSaved], update: int | None = None) -> str | None:
    """Return the folder, relative to the run folder, of the newest recorded checkpoint, or of the one at an update."""
    candidates = [checkpoint for checkpoint in checkpoints if update is None or checkpoint.update == update]
    return f"checkpoints/{PurePath(candidates[-1].path).name}" if candidates else None


def _state(folder: str, record: Mapping[str, Any]) -> str:
    end = record.get("end", "")
    if end and end not in (ROLLED_BACK, "empty"):
        return str(end)
    training = is_training(Path(folder))
    if training:
        return "running"
    return str(end) or ("unknown" if training is None else "killed")


def require_readable(overview: Overview) -> Overview:
    """Return the overview if its journal is readable.

    Raises:
        TrueloopError: the journal is not readable; the message says why.
    """
    if not overview.problem:
        return overview
    error: type[TrueloopError] = InvalidData if overview.state == "damaged" else RunFolderError
    raise error(overview.problem, why="All information about a run comes from its journal.")


def all_monitored_metrics(run_dir: Path) -> list[tuple[str, Literal["min", "max"]]]:
    """Return every metric that a process of a run monitored, with its mode.

    Raises:
        RunFolderError: the journal cannot be read.
        InvalidData: the start line of a process is damaged.
    """
    metrics: dict[tuple[str, Literal["min", "max"]], None] = {}
    try:
        with (run_dir / JOURNAL_NAME).open("rb") as file:
            for line in file:
                if b'"run_started"' in line[:40] and line.endswith(b"\n"):
                    metrics[monitored_metric(parse_json(line)["facts"])] = None
    except OSError as error:
        raise RunFolderError(f"The journal of {run_dir} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidData(f"A line of {run_dir / JOURNAL_NAME} is not a journal line: {error!r}.") from error
    return list(metrics)
