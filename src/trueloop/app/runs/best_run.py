"""Find the best evaluation of all runs, and verify the checkpoint with its weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueloop.core.errors import CheckpointError, TrueloopError
from trueloop.runs.history import History
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.overview import Overview, Point
from trueloop.runs.queries.ranking import Mode, rank_points, rank_runs
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder, NewerSchemaError
from trueloop.training.checkpoint.manifest import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCheckpoint:
    """One evaluation, and the checkpoint with the weights it evaluated."""

    run: Overview
    point: Point
    checkpoint: Path
    """Path of the checkpoint, which may be missing."""
    problem: str
    """Why the checkpoint cannot be used: it is missing or damaged; empty if every byte was verified."""

    def as_json(self) -> dict[str, Any]:
        """Return the output of `--json`."""
        return {
            "run": self.run.name,
            "path": str(self.run.path),
            "run_id": self.run.run_id,
            "recipe": self.run.recipe,
            **self.point._asdict(),
            "checkpoint": str(self.checkpoint),
            "verified": not self.problem,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRun:
    """The result of `find_best`."""

    metric: str
    mode: Mode
    best: EvaluatedCheckpoint
    """The best of all evaluations."""
    alternative: EvaluatedCheckpoint | None
    """The best evaluation with a usable checkpoint, if that of ``best`` is not usable; None if there is none."""


def find_best(runs: Sequence[Overview], metric: str, mode: Mode) -> BestRun:
    """Find the best evaluation of all runs, and verify its checkpoint byte by byte.

    Args:
        runs: the runs to search.
        metric: metric as in the journal: "val/loss".
        mode: whether lower or higher values are better.

    Raises:
        InvalidConfig: no run has measured the metric.

    Cost: reads the checkpoint; if it is not usable, also the journals of runs that may have the next best one.
    """
    order = rank_runs(runs, metric, mode)
    run, point = order[0]
    answer = _check_checkpoint(run, point, _weights_update(run, point, metric))
    offered = _find_alternative([each.run for each in order], metric, mode) if answer.problem else None
    if offered and offered.point.value == point.value:  # equally good, and usable
        answer, offered = offered, None
    return BestRun(metric=metric, mode=mode, best=answer, alternative=offered)


def list_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """List the complete checkpoints of a run, oldest first; read-only, even while the run is training.

    Raises:
        NewerSchemaError: a newer trueloop wrote one of them.
    """
    return CheckpointFolder(run_dir / "checkpoints", writing=False).checkpoints()


def _find_alternative(runs: Sequence[Overview], metric: str, mode: Mode) -> EvaluatedCheckpoint | None:
    """Return the best evaluation with a usable checkpoint; stops when no remaining run can be better."""
    sign, found = (1 if mode == "min" else -1), None
    for run in runs:
        bound = run.best(metric, mode)
        if found and bound and sign * bound.value > sign * found.point.value:
            break
        better = _best_usable(run, metric, mode)
        if better and (found is None or sign * better.point.value < sign * found.point.value):
            found = better
    return found


def _best_usable(run: Overview, metric: str, mode: Mode) -> EvaluatedCheckpoint | None:
    try:
        available = {checkpoint.update for checkpoint in list_checkpoints(run.path)}
        history = read_journal(run.path) if available else None
    except TrueloopError:  # an unreadable run has no usable checkpoint
        return None
    for point in rank_points(history, metric, mode) if history else ():
        update = _weights_update(run, point, metric, history)
        if update in available and not (answer := _check_checkpoint(run, point, update)).problem:
            return answer
    return None


def _weights_update(run: Overview, point: Point, metric: str, history: History | None = None) -> int:
    """Return the update of the weights that an evaluation measured.

    The test set is evaluated with the final weights, which are older if the run ends with its best weights.
    """
    if not metric.startswith("test/"):
        return point.update
    history = history or read_journal(run.path)
    config: Any = history.facts.get("config")
    ships = config.get("checkpoint") if isinstance(config, dict) else None
    last = isinstance(ships, dict) and ships.get("final") == "last"
    return point.update if last or history.best is None else history.best.update


def _check_checkpoint(run: Overview, point: Point, update: int) -> EvaluatedCheckpoint:
    folder = CheckpointFolder(run.path / "checkpoints", writing=False)
    path, problem = folder.path_of(update), "it is missing: it was removed, or never saved"
    try:
        for checkpoint in folder.checkpoints():
            if checkpoint.update == update:
                path, problem = checkpoint.path, ""
        if not problem:
            verify(path)
        elif path.exists():
            verify(path)  # raises the reason
    except NewerSchemaError as error:
        problem = error.what
    except CheckpointError as error:
        problem = error.what
    return EvaluatedCheckpoint(run=run, point=point, checkpoint=path, problem=problem)
