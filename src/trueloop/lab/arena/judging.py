"""Entries handed in and judged: the queue of a board, worked off by whoever has the turn."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from trueloop.core.errors import BoardError, InvalidConfig
from trueloop.core.untrusted_input import Bounds, parse_record
from trueloop.lab.arena.entry import Entry, entry_of
from trueloop.lab.arena.job import MISSES, SEEDS, Job
from trueloop.lab.arena.judge_client import Referee
from trueloop.lab.arena.judging_lock import turn
from trueloop.lab.arena.leaderboard import Board, Row, State, Submission
from trueloop.lab.arena.tracks import TRACKS, Track
from trueloop.lab.arena.trial import SEED_BOUND, End, Point, Trial

TELL_S: Final = 0.2
"""Between two notes of progress on the board."""
BASELINE: Final = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Who hands in."""

    name: Annotated[str, Bounds(1, 32), "shown on the board"] = "anonymous"

    def __post_init__(self) -> None:
        if self.name.strip() != self.name or self.name == BASELINE:
            raise InvalidConfig(
                f"name is {self.name!r}.", fix="It must not begin or end with a space, nor be that of the baseline."
            )


def hand_in(board: Board, track: Track, entry: Entry, name: str) -> int:
    """Put an entry into the queue, the track's baseline before it where that was never judged; return its number.

    The seeds are drawn here, from the system: nobody knows them before the entry is handed in.

    Raises:
        InvalidConfig: a name that cannot be shown.
        BoardError: the queue or the board is full, or nobody could take the turn to judge it here.
    """
    signed = parse_record(Signed, {"name": name})
    with turn(board.path):  # where it cannot be taken, the entry would wait for ever
        pass
    now = time.time()
    if not board.has_baseline(track.name, track.mark):
        board.submit(_submission(track, track.baseline, BASELINE, baseline=True), now)
    return board.submit(_submission(track, entry, signed.name), now)


def judge_waiting(
    board: Board, referee: Referee, *, until: int | None = None, told: Callable[[Row], None] = lambda row: None
) -> bool:
    """Judge entry after entry, if it is our turn.

    Args:
        board: whose queue.
        referee: runs them.
        until: stop when this entry has been judged; None = when none waits.
        told: hears each entry that is begun.

    Returns:
        False where another process judges.
    """
    with turn(board.path) as mine:
        if not mine:
            return False
        while (row := board.begin()) is not None:
            told(row)
            try:
                _judge(board, referee, row)
            except BoardError:
                if referee.closed:
                    board.spare(row.id)
                raise
            if row.id == until:
                break
    return True


def job_of(row: Row, seed: int) -> Job:
    """Return the job that one seed of an entry is."""
    return Job(id=0, track=row.track, entry=entry_of(json.loads(row.config)), seed=seed)


def _submission(track: Track, entry: Entry, name: str, *, baseline: bool = False) -> Submission:
    seeds = tuple(secrets.randbelow(SEED_BOUND) for _ in range(SEEDS))
    return Submission(
        track=track.name, mark=track.mark, name=name, config=entry.as_json(), seeds=seeds, baseline=baseline
    )


def _judge(board: Board, referee: Referee, row: Row) -> State:
    trials: list[Trial] = []
    curves: dict[int, list[Point]] = {}
    known = TRACKS.get(row.track)
    if known is None or known.mark != row.mark:
        trials.append(Trial(seed=0, end=End.FAILED.value, why="It was handed in for another version of the track."))
        return board.judged(row.id, trials, {}, versions={}, now=time.time())
    for place, seed in enumerate(row.seeds):
        teller = _Teller(board, row.id, {"seed": place, "of": len(row.seeds), "done": _done(trials)})
        trials.append(referee.run(job_of(row, seed), teller.hear))
        curves[seed] = teller.curve
        missed = sum(trial.end != End.REACHED for trial in trials)
        if trials[-1].end in (End.FOUND, End.FAILED) or missed == MISSES:
            break
    return board.judged(row.id, trials, curves, versions=referee.versions(), now=time.time())


def _done(trials: list[Trial]) -> list[dict[str, Any]]:
    return [{"end": trial.end, "updates": trial.updates} for trial in trials]


class _Teller:
    """Notes on the board how far a seed is, not too often."""

    def __init__(self, board: Board, entry: int, about: Mapping[str, Any]) -> None:
        self._board, self._entry, self._about = board, entry, about
        self._told_s = 0.0
        self.curve: list[Point] = []
        self._tell(again=False)

    def hear(self, points: list[Point]) -> None:
        """Take the next points of its curve in; none at all says that the run is over and repeated."""
        self.curve += points
        if not points or time.monotonic() - self._told_s >= TELL_S:
            self._tell(again=not points)

    def _tell(self, *, again: bool) -> None:
        self._told_s = time.monotonic()
        update, _, accuracy = self.curve[-1] if self.curve else (0, 0, 0.0)
        self._board.tell(self._entry, {**self._about, "update": update, "accuracy": accuracy, "again": again})
