"""Define the in-memory form of a journal: update rows as columns, all other lines as the reported events."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateColumns:
    """The update rows as columns of equal length, in order of update; see `UpdateRow` for their meaning."""

    update: list[int]
    epoch: list[int]
    loss: list[float]
    grad_norm: list[float]
    lr: list[float]
    """Learning rate of the first parameter group."""
    rates: list[list[float]]
    """Learning rates, one column per parameter group, including the first."""
    examples: list[int]
    wait_s: list[float]
    total_s: list[float]
    skipped: list[bool]

    def __len__(self) -> int:
        return len(self.update)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """The seconds of a run by activity; rows that a resume superseded are not counted."""

    computing: float
    waiting: float
    """Seconds spent waiting for data."""
    evaluating: float
    saving: float

    @property
    def total(self) -> float:
        """The sum of all activities, without start-up and the time between processes."""
        return self.computing + self.waiting + self.evaluating + self.saving


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One run over all its processes, without the updates of a killed process after its last checkpoint."""

    started: RunStarted
    """The start event of the newest process."""
    started_at: float
    """Start time of the first process, in seconds since 1970 (UTC)."""
    processes: int
    """Number of processes: 1 plus the number of resumes."""
    updates: UpdateColumns
    memory: list[tuple[int, float]]
    """Pairs of an update and the memory in use at that update, in MiB; see `UpdatesDone`."""
    evaluations: list[Evaluated]
    checkpoints: list[CheckpointSaved]
    notes: list[Notice]
    end: RunEnded | None
    """The end event; None if the run continues or was killed."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Settings, sizes and machine of the newest process."""
        return self.started.facts

    @property
    def last_update(self) -> int:
        """The newest update that no resume has superseded; 0 before the first update."""
        return self.updates.update[-1] if self.updates.update else self.started.start_update

    @property
    def best(self) -> Evaluated | None:
        """The evaluation with the best monitored metric."""
        return best_evaluation(self.evaluations)

    @property
    def skipped(self) -> list[int]:
        """Updates that were skipped because their gradient was not finite."""
        return [update for update, skipped in zip(self.updates.update, self.updates.skipped, strict=True) if skipped]

    def latest(self, split: str) -> Evaluated | None:
        """Return the newest evaluation of one split ("val", "test")."""
        return next((evaluation for evaluation in reversed(self.evaluations) if evaluation.split == split), None)

    def time_split(self) -> TimeSplit:
        """Sum the seconds by activity."""
        waiting = sum(self.updates.wait_s)
        return TimeSplit(
            computing=max(0.0, sum(self.updates.total_s) - waiting),
            waiting=waiting,
            evaluating=sum(evaluation.seconds for evaluation in self.evaluations),
            saving=sum(checkpoint.seconds for checkpoint in self.checkpoints),
        )


def best_evaluation(evaluations: Iterable[Evaluated]) -> Evaluated | None:
    """Return the newest evaluation that was the best so far; of several splits at one update, "val"."""
    best_so_far = (evaluation for evaluation in evaluations if evaluation.best)
    return max(best_so_far, key=lambda evaluation: (evaluation.update, evaluation.split == "val"), default=None)


def iter_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with their dotted names; an empty mapping yields nothing."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from iter_leaves(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
