"""The best evaluation of all runs, and the checkpoint that holds its weights: there, whole, or missing."""

from __future__ import annotations

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
    """One evaluation, and what is left of the weights it measured."""

    run: Overview
    point: Point
    checkpoint: Path
    """Where the checkpoint lies, or would."""
    problem: str
    """Why it cannot be used: it is missing, or its bytes are not those that were saved; empty where every byte is."""

    def as_json(self) -> dict[str, Any]:
        """As `--json` tells it."""
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
    """What `find_best` found."""

    metric: str
    mode: Mode
    best: EvaluatedCheckpoint
    """The best of all evaluations."""
    alternative: EvaluatedCheckpoint | None
    """Where its checkpoint cannot be used: the best one whose can; None also where there is no such."""


def find_best(runs: Sequence[Overview], metric: str, mode: Mode) -> BestRun:
    """Find the best evaluation over all runs, and check its checkpoint byte by byte.

    Args:
        runs: to look through, every evaluation of each.
        metric: as in the journal: "val/loss".
        mode: whether less or more is better.

    Raises:
        InvalidConfig: no run has measured it.

    Cost: reads the checkpoint; only where that cannot be used, the journals of runs that could hold the next best.
    """
    order = rank_runs(runs, metric, mode)
    run, point = order[0]
    answer = _check_checkpoint(run, point, _weights_update(run, point, metric))
    offered = _find_alternative([each.run for each in order], metric, mode) if answer.problem else None
    if offered and offered.point.value == point.value:  # as good, and there
        answer, offered = offered, None
    return BestRun(metric=metric, mode=mode, best=answer, alternative=offered)


def list_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """List the whole checkpoints of a run, oldest first; only looks, also at a run that trains.

    Raises:
        NewerSchemaError: a newer trueloop wrote one of them.
    """
    return CheckpointFolder(run_dir / "checkpoints", writing=False).checkpoints()


def _find_alternative(runs: Sequence[Overview], metric: str, mode: Mode) -> EvaluatedCheckpoint | None:
    """Go through runs by their best value, until none that is left can beat what was found."""
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
        there = {checkpoint.update for checkpoint in list_checkpoints(run.path)}
        history = read_journal(run.path) if there else None
    except TrueloopError:  # whatever stands in the way, nothing of this run can be offered
        return None
    for point in rank_points(history, metric, mode) if history else ():
        update = _weights_update(run, point, metric, history)
        if update in there and not (answer := _check_checkpoint(run, point, update)).problem:
            return answer
    return None


def _weights_update(run: Overview, point: Point, metric: str, history: History | None = None) -> int:
    """Return after which update the weights were saved that an evaluation measured.

    The test set is measured with the weights that are shipped: where the run ships its best, those are older.
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
            verify(path)  # says what is wrong with it
    except NewerSchemaError as error:
        problem = error.what
    except CheckpointError as error:
        problem = error.what
    return EvaluatedCheckpoint(run=run, point=point, checkpoint=path, problem=problem)
