"""Rank configurations by the median over the seeds of all their entries."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from trueloop.lab.arena.trial import End, Trial

Criterion = Literal["updates", "examples", "time"]
CRITERIA: Final[tuple[Criterion, ...]] = ("updates", "examples", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEntry:
    """An entry that has been judged."""

    id: int
    name: str
    config: str
    """Canonical JSON: equal texts are equal configurations."""
    baseline: bool
    trials: tuple[Trial, ...]
    confirmed: bool = True
    """Whether a judge of this leaderboard has computed the result; False for a row that was written in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and range of one quantity over all seeds."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One configuration on the leaderboard."""

    rank: int | None
    """Rank from 1; None if a seed missed the target, or the entry was disqualified or is not confirmed."""
    name: str
    """Name on the first entry with this configuration."""
    ids: tuple[int, ...]
    """Ids of the entries with this configuration, the oldest first."""
    config: str
    baseline: bool
    seeds: int
    missed: int
    """Number of seeds that did not reach the target."""
    disqualified: str
    """Code of the sanitizer's finding; "" if there is none."""
    updates: Spread | None
    """Number of updates over the seeds that reached the target; None if none did."""
    examples: Spread | None
    time: Spread | None
    accuracy: Spread | None
    """Held-out accuracy at the target."""
    step_ms: Spread | None
    memory_mib: Spread | None
    confirmed: bool
    """False if the entry is not ranked until a replay confirms it."""

    def score(self, by: Criterion) -> Spread | None:
        """Return the score of one ranking."""
        return {"updates": self.updates, "examples": self.examples, "time": self.time}[by]


def standings(entries: Iterable[JudgedEntry], by: Criterion) -> list[Standing]:
    """Rank the configurations that reached the target on every seed by their median, and list the others after them.

    A resubmitted configuration is judged on new seeds, which are pooled with its earlier ones, so that repeated
    attempts cannot select lucky seeds. With equal medians the older configuration is ahead.

    Args:
        entries: the judged entries of one track.
        by: the quantity to rank by.
    """
    groups: dict[tuple[str, bool], list[JudgedEntry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.id):
        groups.setdefault((entry.config, entry.confirmed), []).append(entry)
    rows = sorted((_standing(group) for group in groups.values()), key=lambda row: _sort_key(row, by))
    ranked: list[Standing] = []
    for row in rows:
        rank = len(ranked) + 1 if _is_ranked(row, by) else None
        ranked.append(replace(row, rank=rank))
    return ranked


def _standing(group: Sequence[JudgedEntry]) -> Standing:
    trials = [trial for entry in group for trial in entry.trials]
    reached = [trial for trial in trials if trial.end == End.REACHED]
    codes = [trial.found.code for trial in trials if trial.end == End.FOUND and trial.found]
    return Standing(
        rank=None,
        name=group[0].name,
        ids=tuple(entry.id for entry in group),
        config=group[0].config,
        baseline=any(entry.baseline for entry in group),
        seeds=len(trials),
        missed=len(trials) - len(reached),
        disqualified=next(iter(codes), ""),
        updates=_spread([trial.updates for trial in reached]),
        examples=_spread([trial.examples for trial in reached]),
        time=_spread([trial.time for trial in reached if trial.time is not None]),
        accuracy=_spread([trial.accuracy for trial in reached]),
        step_ms=_spread([trial.step_ms for trial in reached if trial.step_ms is not None]),
        memory_mib=_spread([trial.memory_mib for trial in reached if trial.memory_mib is not None]),
        confirmed=group[0].confirmed,
    )


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(median=statistics.median(values), lowest=min(values), highest=max(values))


def _is_ranked(row: Standing, by: Criterion) -> bool:
    return row.confirmed and not row.missed and not row.disqualified and row.score(by) is not None


def _sort_key(row: Standing, by: Criterion) -> tuple[bool, bool, float, float, int]:
    score = row.score(by)
    median = score.median if score else float("inf")
    missed = row.missed / row.seeds if row.seeds else 1.0
    return (bool(row.disqualified), not _is_ranked(row, by), missed, median, row.ids[0])
