"""Find the best evaluation of all runs, and verify the checkpoint with the evaluated weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueloop.core.errors import CheckpointError, TrueloopError
from trueloop.runs.history import History
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.overview import Overview, Point, recorded_setting
from trueloop.runs.queries.ranking import Mode, rank_points, rank_runs
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder
from trueloop.training.checkpoint.manifest import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCheckpoint:
    """One evaluation, and the checkpoint with the evaluated weights."""

    run: Overview
    point: Point
    checkpoint: Path
    """Path of the checkpoint, which may be missing."""
    problem: str
    """Why the checkpoint cannot be used, because it is missing or damaged; "" if every byte was verified."""

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
    """If the checkpoint of ``best`` is not usable, the best evaluation with a usable checkpoint; else None."""


def find_best(runs: Sequence[Overview], metric: str, mode: Mode) -> BestRun:
    """Find the best evaluation of all runs, and verify its checkpoint byte by byte.

    Args:
        runs: the runs to search.
        metric: name of the metric in the journal: "val/loss".
        mode: "min" if lower values are better, "max" if higher values are better.

    Raises:
        InvalidConfig: no run has measured the metric.

    Cost: reads the checkpoint and, if it is not usable, the journals of runs that may have the next best checkpoint.
    """
    ranked_runs = rank_runs(runs, metric, mode)
    run, point = ranked_runs[0]
    best = _check_checkpoint(run, point, _weights_update(run, point, metric))
    alternative = _find_alternative([each.run for each in ranked_runs], metric, mode) if best.problem else None
    if alternative and alternative.point.value == point.value:  # equally good, and usable
        best, alternative = alternative, None
    return BestRun(metric=metric, mode=mode, best=best, alternative=alternative)


def list_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """List the complete checkpoints of a run, oldest first, without changing them, even while the run is training.

    Raises:
        NewerSchemaError: a newer trueloop wrote a checkpoint.
    """
    return CheckpointFolder(run_dir / "checkpoints", writing=False).checkpoints()


def _find_alternative(runs: Sequence[Overview], metric: str, mode: Mode) -> EvaluatedCheckpoint | None:
    """Return the best evaluation with a usable checkpoint; the search stops when no remaining run can be better."""
    sign, best = (1 if mode == "min" else -1), None
    for run in runs:
        best_of_run = run.best(metric, mode)
        if best and best_of_run and sign * best_of_run.value > sign * best.point.value:
            break
        candidate = _best_usable(run, metric, mode)
        if candidate and (best is None or sign * candidate.point.value < sign * best.point.value):
            best = candidate
    return best


def _best_usable(run: Overview, metric: str, mode: Mode) -> EvaluatedCheckpoint | None:
    try:
        available = {checkpoint.update for checkpoint in list_checkpoints(run.path)}
        history = read_journal(run.path) if available else None
    except TrueloopError:  # an unreadable run has no usable checkpoint
        return None
    for point in rank_points(history, metric, mode) if history else ():
        update = _weights_update(run, point, metric, history)
        if update in available and not (evaluated := _check_checkpoint(run, point, update)).problem:
            return evaluated
    return None


def _weights_update(run: Overview, point: Point, metric: str, history: History | None = None) -> int:
    """Return the update after which the evaluated weights were saved.

    The test set is evaluated with the final weights, which are from an earlier update if the run ends with the best
    weights.
    """
    if not metric.startswith("test/"):
        return point.update
    history = history or read_journal(run.path)
    ends_with_last = recorded_setting(history.facts, "checkpoint.final") == "last"
    return point.update if ends_with_last or history.best is None else history.best.update


def _check_checkpoint(run: Overview, point: Point, update: int) -> EvaluatedCheckpoint:
    folder = CheckpointFolder(run.path / "checkpoints", writing=False)
    path, problem = folder.path_of(update), "it is missing: it was removed, or never saved"
    try:
        for checkpoint in folder.checkpoints():
            if checkpoint.update == update:
                path, problem = checkpoint.path, ""
        if path.exists():
            verify(path)  # raises an error that names the damage
    except CheckpointError as error:
        problem = error.what
    return EvaluatedCheckpoint(run=run, point=point, checkpoint=path, problem=problem)
