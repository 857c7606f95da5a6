"""A row of the board run again from what it says: the same configuration and seeds, the same weights?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from trueloop.core.errors import BoardError
from trueloop.lab.arena.judge_client import Referee
from trueloop.lab.arena.judging import job_of
from trueloop.lab.arena.leaderboard import Row
from trueloop.lab.arena.tracks import track_named
from trueloop.lab.arena.trial import End, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One seed of an entry, then and now."""

    then: Trial
    now: Trial

    @property
    def same(self) -> bool:
        """True where it came to the same end at the same update, with the same weights to the bit."""
        return _essence(self.then) == _essence(self.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An entry run again."""

    seeds: tuple[Replayed, ...]
    differing: dict[str, tuple[str, str]]
    """Versions that are not those of then: name -> (then, now)."""

    @property
    def same(self) -> bool:
        """True where every seed is."""
        return all(seed.same for seed in self.seeds)


def replay(row: Row, referee: Referee, told: Callable[[Replayed], None] = lambda seed: None) -> Replay:
    """Run every seed of an entry again. Nothing is written on the board.

    Raises:
        BoardError: the entry is not judged yet, was never run, or the track is not what it was.
    """
    if row.open or not row.trials or row.trials[0].end == End.FAILED:
        raise BoardError(f"Entry {row.id} has no result to compare with: it is {row.state}.")
    if track_named(row.track).mark != row.mark:
        raise BoardError(
            f"The track {row.track!r} is not what it was when entry {row.id} was judged.",
            fix=f"Replay it with trueloop {row.versions.get('trueloop', 'of then')}.",
        )
    seeds: list[Replayed] = []
    for then in row.trials:
        seeds.append(Replayed(then=then, now=referee.run(replace(job_of(row, then.seed), once=True))))
        told(seeds[-1])
    now = referee.versions()
    names = row.versions.keys() | now.keys()
    differing = {name: (row.versions.get(name, "?"), now.get(name, "?")) for name in sorted(names)}
    return Replay(seeds=tuple(seeds), differing={name: pair for name, pair in differing.items() if pair[0] != pair[1]})


def _essence(trial: Trial) -> tuple[object, ...]:
    """What must be the same again: time is not, and what is found names the same failure."""
    code = trial.found.code if trial.found else ""
    return (trial.end, trial.updates, trial.examples, trial.accuracy, trial.digest, code)
