"""Submits, judges and replays entries of a leaderboard; one process at a time judges."""

import json
import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from trueloop.core.errors import BoardError, InvalidConfig
from trueloop.core.untrusted_input import Bounds, parse_record
from trueloop.lab.arena.entry import Entry, parse_entry
from trueloop.lab.arena.judge_client import JudgeClient
from trueloop.lab.arena.leaderboard import Leaderboard, Row, State, Submission
from trueloop.lab.arena.tracks import TRACKS, Track, find_track
from trueloop.lab.arena.trial import MAX_MISSES, MAX_SEED, SEEDS, End, Job, Point, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReplay:
    """The stored and the new result of one seed."""

    stored: Trial
    repeated: Trial

    @property
    def same(self) -> bool:
        """True if the result is equal and the weights are bitwise equal."""
        return _comparable_result(self.stored) == _comparable_result(self.repeated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The results of running an entry again."""

    seeds: tuple[SeedReplay, ...]
    differing: dict[str, tuple[str, str]]
    """Versions that have changed since the entry was judged: name -> (old, new)."""

    @property
    def same(self) -> bool:
        """True if every seed has the same result."""
        return all(seed.same for seed in self.seeds)

    def record(self, board: Leaderboard, entry: int) -> None:
        """Rank an entry that was confirmed, and no longer rank one that was refuted with the same versions."""
        if self.same or not self.differing:
            board.record_replay(entry, confirmed=self.same)


def replay_entry(row: Row, judge: JudgeClient, on_seed: Callable[[SeedReplay], None] = lambda seed: None) -> Replay:
    """Run every seed of an entry again, without changing the leaderboard.

    Raises:
        BoardError: the entry has no result, or the track has changed.
    """
    if row.is_open or not row.trials or row.trials[0].end == End.FAILED:
        raise BoardError(f"Entry {row.id} has no result to compare with: its state is {str(row.state)!r}.")
    if find_track(row.track).fingerprint != row.track_fingerprint:
        raise BoardError(
            f"The track {row.track!r} has changed since entry {row.id} was judged.",
            fix=f"Replay it with trueloop {row.versions.get('trueloop', 'of that time')}.",
        )
    seeds: list[SeedReplay] = []
    for stored_trial in row.trials:
        job = replace(seed_job(row, stored_trial.seed), without_timing=True)
        seeds.append(SeedReplay(stored=stored_trial, repeated=judge.run(job)))
        on_seed(seeds[-1])
    versions = judge.versions()
    names = sorted(row.versions.keys() | versions.keys())
    old_and_new = {name: (row.versions.get(name, "?"), versions.get(name, "?")) for name in names}
    differing = {name: pair for name, pair in old_and_new.items() if pair[0] != pair[1]}
    return Replay(seeds=tuple(seeds), differing=differing)


def _comparable_result(trial: Trial) -> tuple[object, ...]:
    """Return the part of a result that a replay must reproduce: everything except the time."""
    code = trial.found.code if trial.found else ""
    return (trial.end, trial.updates, trial.examples, trial.accuracy, trial.digest, code)


@contextmanager
def judging_lock(board: Path) -> Generator[bool]:
    """Try to become the leaderboard's only judge, without waiting; yield False if another process judges.

    Args:
        board: the leaderboard's file; the lock file is next to it.

    Raises:
        BoardError: this system or file system does not support such locks.
    """
    try:
        import fcntl
    except ImportError as error:
        raise BoardError("This system lacks the file locks that the judge needs.") from error
    path = board.with_name(board.name + ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BoardError(f"{str(path)!r} cannot be written: {error.strerror}.", fix="Give another --board.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            acquired = True
        except BlockingIOError:
            acquired = False
        yield acquired
    finally:
        os.close(descriptor)


PROGRESS_INTERVAL_S: Final = 0.2
"""Seconds between two progress updates on the leaderboard."""
BASELINE: Final = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestantName:
    """The name of a contestant."""

    name: Annotated[str, Bounds(1, 32), "shown on the leaderboard"] = "anonymous"

    def __post_init__(self) -> None:
        if self.name.strip() != self.name or self.name == BASELINE:
            raise InvalidConfig(
                f"name is {self.name!r}.",
                fix="It must not begin or end with a space, and must not be the baseline's name.",
            )


def submit_entry(board: Leaderboard, track: Track, entry: Entry, name: str) -> int:
    """Queue an entry, preceded by the track's baseline if that was never judged; return its number.

    The seeds are drawn here from the system's randomness, so they are unknown before the submission.

    Raises:
        InvalidConfig: the name is invalid, or the entry equals the baseline.
        BoardError: the queue or the leaderboard is full, or this system cannot judge.
    """
    contestant = parse_record(ContestantName, {"name": name})
    if entry == track.baseline:
        raise InvalidConfig(
            "These are the settings of the baseline, which is judged in any case.", fix="Change a setting first."
        )
    with judging_lock(board.path):  # raises on a system without locks, where the entry would wait forever
        pass
    now = time.time()
    if not board.has_baseline(track.name, track.fingerprint):
        board.submit(_submission(track, track.baseline, BASELINE, baseline=True), now)
    return board.submit(_submission(track, entry, contestant.name), now)


def judge_waiting(
    board: Leaderboard,
    judge: JudgeClient,
    *,
    until: int | None = None,
    on_entry: Callable[[Row], None] = lambda row: None,
) -> bool:
    """Judge entry after entry, unless another process does.

    Args:
        board: the leaderboard with the queue.
        judge: client of the process that runs the entries.
        until: number of the entry after which to stop; None = stop when the queue is empty.
        on_entry: function that receives each entry before it is judged.

    Returns:
        False if another process judges.
    """
    with judging_lock(board.path) as acquired:
        if not acquired:
            return False
        while (row := board.claim_next()) is not None:
            on_entry(row)
            try:
                _judge_entry(board, judge, row)
            except BoardError:
                if judge.closed:
                    board.uncount_attempt(row.id)
                raise
            if row.id == until:
                break
    return True


def seed_job(row: Row, seed: int) -> Job:
    """Return the job for one seed of an entry."""
    return Job(id=0, track=row.track, entry=parse_entry(json.loads(row.config)), seed=seed)


def _submission(track: Track, entry: Entry, name: str, *, baseline: bool = False) -> Submission:
    seeds = tuple(secrets.randbelow(MAX_SEED) for _ in range(SEEDS))
    return Submission(
        track=track.name,
        track_fingerprint=track.fingerprint,
        name=name,
        config=entry.as_json(),
        seeds=seeds,
        baseline=baseline,
    )


def _judge_entry(board: Leaderboard, judge: JudgeClient, row: Row) -> State:
    trials: list[Trial] = []
    curves: dict[int, list[Point]] = {}
    track = TRACKS.get(row.track)
    if track is None or track.fingerprint != row.track_fingerprint:
        trials.append(Trial(seed=0, end=End.FAILED.value, why="It was submitted for another version of the track."))
        return board.record_result(row.id, trials, {}, versions={}, now=time.time())
    for index, seed in enumerate(row.seeds):
        finished = [{"end": trial.end, "updates": trial.updates} for trial in trials]
        progress = {"seed": index, "of": len(row.seeds), "done": finished}
        reporter = _ProgressReporter(board, row.id, progress)
        trials.append(judge.run(seed_job(row, seed), reporter.add_points))
        curves[seed] = reporter.curve
        missed = sum(trial.end != End.REACHED for trial in trials)
        if trials[-1].end in (End.FOUND, End.FAILED) or missed == MAX_MISSES:
            break
    return board.record_result(row.id, trials, curves, versions=judge.versions(), now=time.time())


class _ProgressReporter:
    """Writes the progress of a seed to the leaderboard at limited intervals."""

    def __init__(self, board: Leaderboard, entry: int, fields: Mapping[str, Any]) -> None:
        self._board, self._entry, self._fields = board, entry, fields
        self._reported_s = 0.0
        self.curve: list[Point] = []
        self._report(again=False)

    def add_points(self, points: list[Point]) -> None:
        """Add points of the curve; an empty list means that the run is repeated."""
        self.curve += points
        if not points or time.monotonic() - self._reported_s >= PROGRESS_INTERVAL_S:
            self._report(again=not points)

    def _report(self, *, again: bool) -> None:
        self._reported_s = time.monotonic()
        update, _, accuracy = self.curve[-1] if self.curve else (0, 0, 0.0)
        self._board.set_progress(self._entry, {**self._fields, "update": update, "accuracy": accuracy, "again": again})
