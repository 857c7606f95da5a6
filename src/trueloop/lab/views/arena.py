"""Answer the page "Arena": tracks, practice runs, submissions, rankings and entries."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from statistics import median_low
from typing import Annotated, Any, Final, Literal

from trueloop.core.errors import BoardError, InvalidConfig, MissingExtra
from trueloop.core.untrusted_input import Bounds, parse_record
from trueloop.lab.arena.entry import Entry, parse_entry
from trueloop.lab.arena.judging import ContestantName
from trueloop.lab.arena.leaderboard import Leaderboard, Row
from trueloop.lab.arena.ranking import CRITERIA, Standing, standings
from trueloop.lab.arena.script import write_script
from trueloop.lab.arena.submission_queue import SubmissionQueue
from trueloop.lab.arena.tracks import TRACKS, Track, find_track
from trueloop.lab.arena.trial import MAX_MISSES, MAX_SEED, SEEDS
from trueloop.lab.highlight import highlight

NEEDS_TORCH: Final = False  # the judge is a separate process
MAX_SHOWN: Final = 50  # largest number of shown rows of a ranking
MAX_LEADERS: Final = 3  # number of best entries whose curves are drawn next to the user's

_Number = Annotated[int, Bounds(0, 1 << 53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A request of the page."""

    do: Literal["tracks", "board", "script", "practise", "poll", "submit", "withdraw", "entry", "replay"] = "tracks"
    track: Annotated[str, Bounds(1, 32), "name of the task"] = "digits"
    entry: Entry = field(default_factory=Entry)
    seed: Annotated[int, Bounds(0, MAX_SEED), "random seed of a practice run"] = 1
    name: Annotated[str, Bounds(1, 32), "name on the leaderboard"] = "anonymous"
    id: _Number = 0
    since: _Number = 0


def answer(query: Query) -> dict[str, Any]:
    """Answer one request."""
    try:
        return _ANSWERS[query.do](query)
    except (BoardError, MissingExtra) as error:
        raise InvalidConfig(error.what, why=error.why, fix=error.fix) from error


@cache
def _submission_queue() -> SubmissionQueue:
    return SubmissionQueue()


def _tracks(query: Query) -> dict[str, Any]:
    return {"tracks": [_track(track) for track in TRACKS.values()], "seeds": SEEDS, "misses": MAX_MISSES}


def _track(track: Track) -> dict[str, Any]:
    return {
        "name": track.name,
        "title": track.title,
        "description": track.description,
        "target": track.target,
        "baseline": asdict(track.baseline),
        "model": highlight(track.model.rstrip()),
    }


def _board(query: Query) -> dict[str, Any]:
    queue, track = _submission_queue(), find_track(query.track)
    queue.ensure_judging()
    board = queue.leaderboard
    judged = board.judged_entries(track.name, track.fingerprint)
    boards = {criterion: standings(judged, criterion) for criterion in CRITERIA}
    by_updates = boards["updates"]
    leaders = [row for row in by_updates if row.rank is not None and not row.baseline][:MAX_LEADERS]
    baseline = [row for row in by_updates if row.baseline][:1]
    return {
        "track": track.name,
        "best": {each.name: _best(board, each) for each in TRACKS.values()},
        "boards": {
            criterion: [_standing(row, track) for row in rows[:MAX_SHOWN]] for criterion, rows in boards.items()
        },
        "curves": [curve for row in baseline + leaders if (curve := _median_curve(board, row)) is not None],
        "queue": [_entry_state(board, row) for row in board.open_entries()],
        "refused": [asdict(each) for each in board.damaged_rows(track.name)[:MAX_SHOWN]],
    }


def _best(board: Leaderboard, track: Track) -> float | None:
    leader = next(iter(standings(board.judged_entries(track.name, track.fingerprint), "updates")), None)
    return leader.updates.median if leader is not None and leader.rank and leader.updates else None


def _standing(row: Standing, track: Track) -> dict[str, Any]:
    return {
        **asdict(row),
        "config": json.loads(row.config),
        "changes": parse_entry(json.loads(row.config)).non_default_settings(),
        "lines": _count_lines(write_script(track, parse_entry(json.loads(row.config)), 0)),
    }


def _count_lines(script: str) -> int:
    """Return the number of lines of a script that are not empty."""
    return sum(bool(line.strip()) for line in script.splitlines())


def _median_curve(board: Leaderboard, row: Standing) -> dict[str, Any] | None:
    """Return the curve of the median seed of a configuration's newest entry."""
    entry = board.entry(row.ids[-1])
    reached = [trial for trial in entry.trials if trial.end == "reached"]
    if not reached:
        return None
    updates = median_low(trial.updates for trial in reached)
    seed = next(trial.seed for trial in reached if trial.updates == updates)
    try:
        points = board.curves(entry.id).get(seed, [])
    except BoardError:  # a damaged curve; the entry's own page reports it
        return None
    return {"name": row.name, "baseline": row.baseline, "rank": row.rank, "id": entry.id, "points": points}


def _entry_state(board: Leaderboard, row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "track": row.track,
        "name": row.name,
        "state": str(row.state),
        "ahead": board.count_ahead(row.id),
        "progress": row.progress,
    }


def _script(query: Query) -> dict[str, Any]:
    track = find_track(query.track)
    return {"script": highlight(write_script(track, query.entry, query.seed, practice=True))}


def _practise(query: Query) -> dict[str, Any]:
    queue, track = _submission_queue(), find_track(query.track)
    if query.id:
        queue.stop(query.id)
    return {"id": queue.start_practice(track, query.entry, query.seed), **_script(query)}


def _poll(query: Query) -> dict[str, Any]:
    background_run = _submission_queue().find_run(query.id)
    done = background_run.done  # read before the rest, which is then complete if this is True
    error = background_run.error
    return {
        "id": background_run.id,
        "done": done,
        "points": background_run.curve[query.since :],
        "trial": asdict(background_run.trial) if background_run.trial else None,
        "seeds": [{**asdict(seed), "same": seed.same} for seed in background_run.seeds],
        "same": background_run.replay.same if background_run.replay else None,
        "differing": background_run.replay.differing if background_run.replay else {},
        "error": {"what": error.what, "why": error.why, "fix": error.fix} if error else None,
    }


def _submit(query: Query) -> dict[str, Any]:
    parse_record(ContestantName, {"name": query.name})
    return {"id": _submission_queue().submit(find_track(query.track), query.entry, query.name)}


def _entry(query: Query) -> dict[str, Any]:
    queue = _submission_queue()
    board = queue.leaderboard
    row = board.entry(query.id)
    if row.is_open:
        queue.ensure_judging()
    config = json.loads(row.config)
    entry, track = parse_entry(config), TRACKS.get(row.track)
    is_current = track is not None and track.fingerprint == row.track_fingerprint
    judged = board.judged_entries(row.track, row.track_fingerprint) if is_current and not row.is_open else []
    standing = next((each for each in standings(judged, "updates") if row.id in each.ids), None)
    return {
        **_entry_state(board, row),
        "config": config,
        "changes": entry.non_default_settings(),
        "open": row.is_open,
        "baseline": row.baseline,
        "rank": standing.rank if standing else None,
        "confirmed": standing.confirmed if standing else True,
        "row_name": standing.name if standing else row.name,
        "pooled_entries": len(standing.ids) if standing else 1,
        "submitted": row.submitted,
        "seeds": row.seeds,
        "trials": [asdict(trial) for trial in row.trials],
        "versions": row.versions,
        "why": row.why,
        "curves": [{"seed": seed, "points": points} for seed, points in board.curves(row.id).items()],
        "script": highlight(write_script(track, entry, row.seeds[0])) if track is not None and is_current else None,
    }


def _withdraw(query: Query) -> dict[str, Any]:
    if not _submission_queue().leaderboard.withdraw(query.id):
        raise BoardError(f"Entry {query.id} is being judged or was judged, and can no longer be withdrawn.")
    return {"withdrawn": query.id}


def _replay(query: Query) -> dict[str, Any]:
    return {"id": _submission_queue().start_replay(query.id)}


_ANSWERS: Final[Mapping[str, Callable[[Query], dict[str, Any]]]] = {
    "tracks": _tracks,
    "board": _board,
    "script": _script,
    "practise": _practise,
    "poll": _poll,
    "submit": _submit,
    "withdraw": _withdraw,
    "entry": _entry,
    "replay": _replay,
}
