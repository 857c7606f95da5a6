"""A run as its journal tells it: update rows in columns, everything else as the events that were reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from trueloop.core.protocols import CheckpointSaved, Evaluated, Notice, RunEnded, RunStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The update rows as columns of equal length, in order of update; see `UpdateRow` for the meaning of each."""

    update: list[int]
    epoch: list[int]
    loss: list[float]
    grad_norm: list[float]
    lr: list[float]
    """Of the first group."""
    rates: list[list[float]]
    """Of every group, the first one included."""
    examples: list[int]
    wait_s: list[float]
    total_s: list[float]
    skipped: list[bool]

    def __len__(self) -> int:
        return len(self.update)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Where the seconds of a run went; rows that a resume superseded are not counted."""

    computing: float
    waiting: float
    """For data."""
    evaluating: float
    saving: float

    @property
    def total(self) -> float:
        """All of it, without start-up and what ran between the processes."""
        return self.computing + self.waiting + self.evaluating + self.saving


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One run, over all its processes: what a killed process did beyond its last checkpoint is left out."""

    started: RunStarted
    """Of the newest process."""
    started_at: float
    """When the first process began, seconds since 1970 (UTC)."""
    processes: int
    """1, and one more for each resume."""
    updates: Updates
    memory: list[tuple[int, float]]
    """Update, and the memory taken then in MiB; see `UpdatesDone`."""
    evaluations: list[Evaluated]
    checkpoints: list[CheckpointSaved]
    notes: list[Notice]
    end: RunEnded | None
    """None while the run goes on, and after it was killed."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the newest process said about settings, sizes and machine."""
        return self.started.facts

    @property
    def last_update(self) -> int:
        """The newest update that counts; 0 before the first."""
        return self.updates.update[-1] if self.updates.update else self.started.start_update

    @property
    def best(self) -> Evaluated | None:
        """The evaluation whose monitored metric no later one has beaten; of several splits, validation."""
        marked = [each for each in self.evaluations if each.best]
        return max(marked, key=lambda each: (each.update, each.split == "val"), default=None)

    @property
    def skipped(self) -> list[int]:
        """Updates whose gradient was not finite and which were therefore not stepped."""
        return [update for update, skipped in zip(self.updates.update, self.updates.skipped, strict=True) if skipped]

    def latest(self, split: str) -> Evaluated | None:
        """The newest evaluation of one split ("val", "test")."""
        return next((each for each in reversed(self.evaluations) if each.split == split), None)

    def time_split(self) -> TimeSplit:
        """Add the seconds up by what they were spent on."""
        waiting = sum(self.updates.wait_s)
        return TimeSplit(
            computing=max(0.0, sum(self.updates.total_s) - waiting),
            waiting=waiting,
            evaluating=sum(each.seconds for each in self.evaluations),
            saving=sum(each.seconds for each in self.checkpoints),
        )


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what nested mappings hold, by dotted name; an empty one holds nothing."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
