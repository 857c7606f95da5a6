"""One run in a few numbers: how far it is, what it measured, whether it goes on, and why it cannot be told."""

from __future__ import annotations

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
"""The kind of the note that a run made by a rollback begins with."""

STATES = (
    "running", "finished", "early_stop", "interrupted", "preempted", "failed", "killed", ROLLED_BACK, "unknown",
    "damaged", "empty",
)  # fmt: skip
"""As the newest process said; else "running" while somebody holds the lock, "killed" where nobody does, "unknown" where
locks do not work; "rolled_back" until it goes on; "damaged" and "empty" where the journal does not tell."""


_INTERNAL_KEYS = (
    "lowest",
    "highest",
    "last",
    "end",
    "saved",
    "read",
)  # of a record: told in another form, or not at all


class Point(NamedTuple):
    """One value of a metric, and where in the run it was measured."""

    value: float
    update: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One run; see `read_record` for what is kept in the index."""

    folder: str
    """The run's; as text, since 10,000 paths take 50 ms."""
    record: Mapping[str, Any]
    """JSON-ready."""
    facts: Mapping[str, Any]
    """Settings and the recipe's options, dotted: {"config.optim.lr": 0.001}; empty where they were not asked for."""
    state: str
    """One of `STATES`."""

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.rpartition("/")[2] if self.folder[-1:] not in ("/", ".", "") else self.path.resolve().name

    @property
    def problem(self) -> str:
        """Why the journal does not tell; empty where it does."""
        return self.record.get("problem", "")

    @property
    def run_id(self) -> str:
        """32 hexadecimal digits, the same over all processes of the run; empty where the journal does not tell."""
        return self.record.get("run_id", "")

    @property
    def recipe(self) -> str:
        """What was trained."""
        return self.record.get("recipe", "")

    @property
    def started_at(self) -> float:
        """When the first process began, seconds since 1970; 0 where the journal does not tell."""
        return float(self.record.get("started_at", 0.0))

    @property
    def monitor(self) -> tuple[str, Literal["min", "max"]]:
        """The metric that says which evaluation is best, and "min" or "max"."""
        metric, mode = self.record.get("monitor", ("val/loss", "min"))
        return metric, "max" if mode == "max" else "min"

    @property
    def metrics(self) -> Sequence[str]:
        """Names of everything that was evaluated: "val/loss"."""
        return list(self.record.get("last", ()))

    def last(self, metric: str) -> Point | None:
        """The newest value; it may not be finite."""
        return self._point("last", metric)

    def best(self, metric: str, mode: str) -> Point | None:
        """The least (mode "min") or greatest finite value of all evaluations; the earlier one of equals."""
        return self._point("lowest" if mode == "min" else "highest", metric)

    def as_json(self) -> dict[str, Any]:
        """Everything, as `--json` tells it."""
        metric, mode = self.monitor
        best = self.record.get("lowest" if mode == "min" else "highest", {}).get(metric)
        known = {key: value for key, value in self.record.items() if key not in _INTERNAL_KEYS}
        return {
            "name": self.name,
            "path": self.folder,
            "state": self.state,
            **known,
            "monitor": {"metric": metric, "mode": mode},
            "best": best and {"metric": metric, **_point_json(best)},
            "last": {name: _point_json(point) for name, point in self.record.get("last", {}).items()},
        }

    def _point(self, of: str, metric: str) -> Point | None:
        found = self.record.get(of, {}).get(metric)
        return Point(float(found[0]), found[1], found[2]) if found else None


def read_overview(run_dir: Path) -> Overview:
    """Read a run's journal for its overview; a damaged one is told by `Overview.problem`, never by an exception."""
    record, facts = read_record(run_dir)
    return make_overview(str(run_dir), record, facts)


def make_overview(folder: str, record: Mapping[str, Any], facts: Mapping[str, Any]) -> Overview:
    """Join what the journal said with what holds right now."""
    return Overview(folder=folder, record=record, facts=facts, state=_state(folder, record))


def read_record(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a run's journal for what does not change unless the journal does: its record and its settings.

    Returns:
        Both JSON-ready; the record of a journal that cannot be read holds only the "problem".

    Cost: that of `read`.
    """
    try:
        history = read_journal(run_dir / JOURNAL_NAME)
        return _make_record(run_dir, history), flat_settings(history)
    except InvalidData as error:
        return {"end": "damaged", "problem": error.what}, {}
    except RunFolderError as error:
        return {"end": "empty", "problem": error.what}, {}
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        # A line that is JSON, has every field, and yet no sense: {"facts": 3}, an update number of 400 digits.
        return {"end": "damaged", "problem": f"{run_dir / JOURNAL_NAME} makes no sense: {error!r}."}, {}


def flat_settings(history: History) -> dict[str, Any]:
    """Lay the settings and the recipe's options out by dotted name: {"config.optim.lr": 0.001, "options.width": 8}."""
    return flatten({name: history.facts.get(name) or {} for name in ("config", "options")})


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested mappings into one with dotted names; an empty one is left out."""
    return dict(iter_leaves(tree))


def monitored_metric(facts: Mapping[str, Any]) -> tuple[str, Literal["min", "max"]]:
    """Find the monitored metric and its mode in a run's facts; ("val/loss", "min") where they do not say."""
    config = facts.get("config")
    monitor = config.get("monitor") if isinstance(config, Mapping) else None
    if not isinstance(monitor, Mapping):
        return "val/loss", "min"
    told = cast("Mapping[str, Any]", monitor)
    return str(told.get("metric") or "val/loss"), "max" if told.get("mode") == "max" else "min"


def metric_points(evaluations: Iterable[Evaluated]) -> dict[str, list[Point]]:
    """Sort evaluations by metric ("val/loss"), each in order of update."""
    found: dict[str, list[Point]] = {}
    for each in evaluations:
        for name, value in each.metrics.items():
            found.setdefault(f"{each.split}/{name}", []).append(Point(value, each.update, each.epoch))
    return found


def _make_record(run_dir: Path, history: History) -> dict[str, Any]:
    facts, end, updates = history.facts, history.end, history.updates
    measured = metric_points(history.evaluations)
    finite = {name: [each for each in some if math.isfinite(each.value)] for name, some in measured.items()}
    metric, mode = monitored_metric(facts)
    lowest = {name: min(some, key=lambda each: each.value) for name, some in finite.items() if some}
    highest = {name: max(some, key=lambda each: each.value) for name, some in finite.items() if some}
    best = (lowest if mode == "min" else highest).get(metric)
    rolled_back = history.notes[-1:] and (history.notes[-1].kind, history.notes[-1].update)
    stopped = rolled_back == (ROLLED_BACK, history.last_update)
    return {
        "run_id": read_run_id(run_dir / JOURNAL_NAME) or "",
        "recipe": str(facts.get("recipe") or history.started.name),
        "started_at": history.started_at,
        "end": str(end.reason) if end else ROLLED_BACK if stopped else "",
        "update": history.last_update,
        "updates": history.started.updates,
        "epoch": updates.epoch[-1] if len(updates) else 0,
        "epochs": history.started.epochs,
        "duration_s": end.seconds if end and history.processes == 1 else history.time_split().total,
        "processes": history.processes,
        "monitor": [metric, mode],
        "last": {name: some[-1] for name, some in measured.items()},
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
    """Return update and folder of the newest recorded checkpoint."""
    return [checkpoints[-1].update, _checkpoint_folder(checkpoints)] if checkpoints else [-1, None]


def _checkpoint_folder(checkpoints: Sequence[CheckpointSaved], update: int | None = None) -> str | None:
    """Name the folder of a recorded checkpoint below the run; where the journal says it lies is never followed."""
    found = [each for each in checkpoints if update is None or each.update == update]
    return f"checkpoints/{PurePath(found[-1].path).name}" if found else None


def _state(folder: str, record: Mapping[str, Any]) -> str:
    end = record.get("end", "")
    if end and end not in (ROLLED_BACK, "empty"):
        return str(end)
    training = is_training(Path(folder))
    if training:
        return "running"
    return str(end) or ("unknown" if training is None else "killed")


def require_readable(overview: Overview) -> Overview:
    """Return an overview that tells something.

    Raises:
        TrueloopError: its journal does not; says why.
    """
    if not overview.problem:
        return overview
    error: type[TrueloopError] = InvalidData if overview.state == "damaged" else RunFolderError
    raise error(overview.problem, why="A run is told from its journal; this one cannot be.")


def all_monitored_metrics(run_dir: Path) -> list[tuple[str, Literal["min", "max"]]]:
    """Return every metric, with its mode, that any process of a run monitored.

    Raises:
        RunFolderError: the journal cannot be read.
        InvalidData: a line that begins a process is damaged.
    """
    found: dict[tuple[str, Literal["min", "max"]], None] = {}
    try:
        with (run_dir / JOURNAL_NAME).open("rb") as file:
            for line in file:
                if b'"run_started"' in line[:40] and line.endswith(b"\n"):
                    found[monitored_metric(parse_json(line)["facts"])] = None
    except OSError as error:
        raise RunFolderError(f"The journal of {run_dir} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidData(f"A line of {run_dir / JOURNAL_NAME} is not a journal line: {error!r}.") from error
    return list(found)
