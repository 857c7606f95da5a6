"""Entries handed in and judged, by a referee that knows at once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trueloop.core.errors import BoardError, InvalidConfig
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judge_client import JudgeClient
from trueloop.lab.arena.judging import judge_waiting, judging_lock, replay_entry, submit_entry
from trueloop.lab.arena.leaderboard import Leaderboard, State
from trueloop.lab.arena.ranking import standings
from trueloop.lab.arena.tracks import DIGITS
from trueloop.lab.arena.trial import MAX_MISSES, SEEDS, Trial


@pytest.fixture
def row(tmp_path: Path, made_up_referee: list[Any]):
    board = Leaderboard(tmp_path / "arena.sqlite3")
    number = submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    judge_waiting(board, JudgeClient())
    return board.entry(number)


def test_the_same_seeds_and_settings_are_run(row, made_up_referee: list[Any]):
    made_up_referee.clear()
    again = replay_entry(row, JudgeClient())
    assert again.same
    assert again.differing == {}
    assert [(job.seed, job.entry) for job in made_up_referee] == [(seed, Entry(lr=0.02)) for seed in row.seeds]


@pytest.mark.parametrize("change", [{"updates": 19}, {"digest": "other"}, {"end": "not reached"}, {"accuracy": 0.961}])
def test_a_number_that_somebody_wrote_is_found_out(row, change):
    forged = replace(row, trials=(replace(row.trials[0], **change), *row.trials[1:]))
    again = replay_entry(forged, JudgeClient())
    assert [seed.same for seed in again.seeds] == [False, True, True, True, True]
    assert not again.same


def test_time_is_not_expected_to_be_the_same(row):
    assert replay_entry(
        replace(row, trials=tuple(replace(trial, time=9.9) for trial in row.trials)), JudgeClient()
    ).same


def test_other_versions_are_named(row):
    again = replay_entry(replace(row, versions={"torch": "1.0"}), JudgeClient())
    assert again.differing == {"torch": ("1.0", "2.0")}


def test_an_entry_of_a_track_that_has_changed_is_refused(row):
    with pytest.raises(BoardError, match="has changed since"):
        replay_entry(replace(row, track_fingerprint="older"), JudgeClient())


def test_an_entry_without_a_result_is_refused(row):
    with pytest.raises(BoardError, match="no result"):
        replay_entry(replace(row, trials=()), JudgeClient())


HOLD = """
import sys
from pathlib import Path
from trueloop.lab.arena.judging import judging_lock
with judging_lock(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


def test_the_turn_is_one_processs_until_it_ends(tmp_path: Path):
    board = tmp_path / "arena.sqlite3"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(board)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"True\n"
    with judging_lock(board) as mine:
        assert not mine
    other.kill()
    other.communicate()
    with judging_lock(board) as mine:
        assert mine
        with judging_lock(board) as again:
            assert not again
    with judging_lock(board) as mine:
        assert mine


@pytest.fixture
def board(tmp_path: Path) -> Leaderboard:
    return Leaderboard(tmp_path / "arena.sqlite3")


def test_an_entry_is_judged_on_seeds_of_the_referees_after_the_baseline(board: Leaderboard, made_up_referee: list[Any]):
    number = submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    assert board.count_waiting() == 2
    assert judge_waiting(board, JudgeClient())
    row, base = board.entry(number), board.entry(number - 1)
    assert (row.state, base.state, base.baseline, base.name) == (State.REACHED, State.REACHED, True, "baseline")
    assert [job.seed for job in made_up_referee] == [*base.seeds, *row.seeds]
    assert len(set(row.seeds) | set(base.seeds)) == 2 * SEEDS, "all of them fresh"
    assert not any(job.practice for job in made_up_referee)
    assert board.curves(number).keys() == set(row.seeds)
    ranked = standings(board.judged_entries(DIGITS.name, DIGITS.fingerprint), "updates")
    assert [each.name for each in ranked] == ["ada", "baseline"]


def test_the_baseline_is_judged_once(board: Leaderboard, made_up_referee: list[Any]):
    submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    judge_waiting(board, JudgeClient())
    submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    assert board.count_waiting() == 1
    judge_waiting(board, JudgeClient())
    rows = standings(board.judged_entries(DIGITS.name, DIGITS.fingerprint), "updates")
    assert [(each.name, each.seeds) for each in rows] == [("ada", 2 * SEEDS), ("baseline", SEEDS)]


def test_an_entry_that_nobody_here_could_judge_is_not_taken(board: Leaderboard):
    board.path.with_name(f"{board.path.name}.lock").mkdir()
    with pytest.raises(BoardError, match="cannot be written"):
        submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    assert board.count_waiting() == 0


def test_a_finding_ends_the_judging_at_once(board: Leaderboard, made_up_referee: list[Any]):
    number = submit_entry(board, DIGITS, Entry(lr=9.0), "boom")
    judge_waiting(board, JudgeClient())
    row = board.entry(number)
    assert (row.state, row.why, len(row.trials)) == (State.DISQUALIFIED, "GRD007: the loss is nan", 1)


def test_after_some_misses_the_other_seeds_are_not_run(board: Leaderboard, made_up_referee: list[Any]):
    number = submit_entry(board, DIGITS, Entry(lr=0.0001), "slow")
    judge_waiting(board, JudgeClient())
    row = board.entry(number)
    assert (row.state, len(row.trials)) == (State.NOT_REACHED, MAX_MISSES)
    assert len(made_up_referee) == SEEDS + MAX_MISSES


def test_nobody_judges_while_another_process_does(board: Leaderboard, made_up_referee: list[Any]):
    submit_entry(board, DIGITS, Entry(), "ada")
    with judging_lock(board.path):
        assert not judge_waiting(board, JudgeClient())
    assert made_up_referee == []


def test_judging_stops_at_the_entry_one_waits_for(board: Leaderboard, made_up_referee: list[Any]):
    first = submit_entry(board, DIGITS, Entry(lr=0.02), "a")
    submit_entry(board, DIGITS, Entry(lr=0.03), "b")
    assert judge_waiting(board, JudgeClient(), until=first)
    assert [row.name for row in board.open_entries()] == ["b"]


def test_a_referee_that_is_gone_leaves_the_entry_in_the_queue(board: Leaderboard, monkeypatch: pytest.MonkeyPatch):
    def gone(*_a: Any, **_k: Any) -> None:
        raise BoardError("The referee's process ended.")

    monkeypatch.setattr(JudgeClient, "run", gone)
    submit_entry(board, DIGITS, Entry(), "ada")
    with pytest.raises(BoardError, match="ended"):
        judge_waiting(board, JudgeClient())
    assert board.count_waiting() == 2


@pytest.mark.parametrize("name", ["", " ada", "ada ", "x" * 33, "a\nb", "a\x1b[31m", "baseline"])
def test_a_name_that_cannot_be_shown_is_refused_before_anything_is_written(board: Leaderboard, name: str):
    with pytest.raises(InvalidConfig, match="name"):
        submit_entry(board, DIGITS, Entry(), name)
    assert board.count_waiting() == 0


def test_an_entry_of_another_version_of_the_track_is_not_run(board: Leaderboard, made_up_referee, monkeypatch):
    from dataclasses import replace

    number = submit_entry(board, replace(DIGITS, target=0.5), Entry(), "ada")
    judge_waiting(board, JudgeClient())
    assert (board.entry(number).state, made_up_referee) == (State.FAILED, [])


def test_the_board_is_told_how_far_a_seed_is_and_when_it_is_run_again(
    board: Leaderboard, monkeypatch: pytest.MonkeyPatch
):
    reported: list[dict[str, Any]] = []

    def run(self: JudgeClient, job: Any, tell: Any) -> Trial:
        tell([(1, 32, 0.5), (2, 64, 0.97)])
        tell([])
        return Trial(seed=job.seed, end="reached", updates=2)

    monkeypatch.setattr(JudgeClient, "run", run)
    monkeypatch.setattr(JudgeClient, "versions", lambda self: {})
    monkeypatch.setattr(Leaderboard, "has_baseline", lambda *_: True)
    monkeypatch.setattr(Leaderboard, "set_progress", lambda self, entry, progress: reported.append(dict(progress)))
    submit_entry(board, DIGITS, Entry(), "ada")
    judge_waiting(board, JudgeClient())
    assert [(each["seed"], each["update"], each["again"]) for each in reported] == [
        pair for seed in range(SEEDS) for pair in ((seed, 0, False), (seed, 2, True))
    ]
    assert [len(each["done"]) for each in reported] == [seed for seed in range(SEEDS) for _ in range(2)]
