"""Entries are submitted, judged and replayed, with a fake judge."""

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
def row(tmp_path: Path, fake_judge: list[Any]):
    board = Leaderboard(tmp_path / "arena.sqlite3")
    number = submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    judge_waiting(board, JudgeClient())
    return board.entry(number)


def test_a_replay_runs_the_same_seeds_and_settings(row, fake_judge: list[Any]):
    fake_judge.clear()
    again = replay_entry(row, JudgeClient())
    assert again.same
    assert again.differing == {}
    assert [(job.seed, job.entry) for job in fake_judge] == [(seed, Entry(lr=0.02)) for seed in row.seeds]


@pytest.mark.parametrize("change", [{"updates": 19}, {"digest": "other"}, {"end": "not reached"}, {"accuracy": 0.961}])
def test_a_replay_detects_a_forged_result(row, change):
    forged_row = replace(row, trials=(replace(row.trials[0], **change), *row.trials[1:]))
    again = replay_entry(forged_row, JudgeClient())
    assert [seed.same for seed in again.seeds] == [False, True, True, True, True]
    assert not again.same


def test_a_replay_ignores_the_time(row):
    assert replay_entry(
        replace(row, trials=tuple(replace(trial, time=9.9) for trial in row.trials)), JudgeClient()
    ).same


def test_a_replay_names_changed_versions(row):
    again = replay_entry(replace(row, versions={"torch": "1.0"}), JudgeClient())
    assert again.differing == {"torch": ("1.0", "2.0")}


def test_an_entry_of_a_track_that_has_changed_is_refused(row):
    with pytest.raises(BoardError, match="has changed since"):
        replay_entry(replace(row, track_fingerprint="older"), JudgeClient())


def test_an_entry_without_a_result_is_refused(row):
    with pytest.raises(BoardError, match="no result"):
        replay_entry(replace(row, trials=()), JudgeClient())


HOLD_LOCK = """
import sys
from pathlib import Path
from trueloop.lab.arena.judging import judging_lock
with judging_lock(Path(sys.argv[1])) as acquired:
    print(acquired, flush=True)
    sys.stdin.read()
"""


def test_one_process_holds_the_judging_lock_until_it_ends(tmp_path: Path):
    board = tmp_path / "arena.sqlite3"
    command = [sys.executable, "-c", HOLD_LOCK, str(board)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"True\n"
    with judging_lock(board) as acquired:
        assert not acquired
    other.kill()
    other.communicate()
    with judging_lock(board) as acquired:
        assert acquired
        with judging_lock(board) as again:
            assert not again
    with judging_lock(board) as acquired:
        assert acquired


@pytest.fixture
def board(tmp_path: Path) -> Leaderboard:
    return Leaderboard(tmp_path / "arena.sqlite3")


def test_an_entry_is_judged_on_fresh_seeds_after_the_baseline(board: Leaderboard, fake_judge: list[Any]):
    number = submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    assert board.count_waiting() == 2
    assert judge_waiting(board, JudgeClient())
    row, baseline = board.entry(number), board.entry(number - 1)
    assert row.state == baseline.state == State.REACHED
    assert (baseline.baseline, baseline.name) == (True, "baseline")
    assert [job.seed for job in fake_judge] == [*baseline.seeds, *row.seeds]
    assert len(set(row.seeds) | set(baseline.seeds)) == 2 * SEEDS, "all of them fresh"
    assert not any(job.practice for job in fake_judge)
    assert board.curves(number).keys() == set(row.seeds)
    ranked = standings(board.judged_entries(DIGITS.name, DIGITS.fingerprint), "updates")
    assert [each.name for each in ranked] == ["ada", "baseline"]


def test_the_baseline_is_judged_once(board: Leaderboard, fake_judge: list[Any]):
    submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    judge_waiting(board, JudgeClient())
    submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    assert board.count_waiting() == 1
    judge_waiting(board, JudgeClient())
    rows = standings(board.judged_entries(DIGITS.name, DIGITS.fingerprint), "updates")
    assert [(each.name, each.seeds) for each in rows] == [("ada", 2 * SEEDS), ("baseline", SEEDS)]


def test_an_entry_that_cannot_be_judged_here_is_refused(board: Leaderboard):
    board.path.with_name(f"{board.path.name}.lock").mkdir()
    with pytest.raises(BoardError, match="cannot be written"):
        submit_entry(board, DIGITS, Entry(lr=0.02), "ada")
    assert board.count_waiting() == 0


def test_judging_stops_after_a_finding(board: Leaderboard, fake_judge: list[Any]):
    number = submit_entry(board, DIGITS, Entry(lr=9.0), "boom")
    judge_waiting(board, JudgeClient())
    row = board.entry(number)
    assert (row.state, row.why, len(row.trials)) == (State.DISQUALIFIED, "GRD007: the loss is nan", 1)


def test_judging_stops_after_some_misses(board: Leaderboard, fake_judge: list[Any]):
    number = submit_entry(board, DIGITS, Entry(lr=0.0001), "slow")
    judge_waiting(board, JudgeClient())
    row = board.entry(number)
    assert (row.state, len(row.trials)) == (State.NOT_REACHED, MAX_MISSES)
    assert len(fake_judge) == SEEDS + MAX_MISSES


def test_only_one_process_judges(board: Leaderboard, fake_judge: list[Any]):
    submit_entry(board, DIGITS, Entry(), "ada")
    with judging_lock(board.path):
        assert not judge_waiting(board, JudgeClient())
    assert fake_judge == []


def test_judging_stops_after_the_given_entry(board: Leaderboard, fake_judge: list[Any]):
    first = submit_entry(board, DIGITS, Entry(lr=0.02), "a")
    submit_entry(board, DIGITS, Entry(lr=0.03), "b")
    assert judge_waiting(board, JudgeClient(), until=first)
    assert [row.name for row in board.open_entries()] == ["b"]


def test_an_entry_stays_in_the_queue_when_the_judge_process_ends(board: Leaderboard, monkeypatch: pytest.MonkeyPatch):
    def raise_error(*_a: Any, **_k: Any) -> None:
        raise BoardError("The referee's process ended.")

    monkeypatch.setattr(JudgeClient, "run", raise_error)
    submit_entry(board, DIGITS, Entry(), "ada")
    with pytest.raises(BoardError, match="ended"):
        judge_waiting(board, JudgeClient())
    assert board.count_waiting() == 2


@pytest.mark.parametrize("name", ["", " ada", "ada ", "x" * 33, "a\nb", "a\x1b[31m", "baseline"])
def test_an_invalid_name_is_refused(board: Leaderboard, name: str):
    with pytest.raises(InvalidConfig, match="name"):
        submit_entry(board, DIGITS, Entry(), name)
    assert board.count_waiting() == 0


def test_an_entry_of_another_version_of_the_track_is_not_run(board: Leaderboard, fake_judge, monkeypatch):
    from dataclasses import replace

    number = submit_entry(board, replace(DIGITS, target=0.5), Entry(), "ada")
    judge_waiting(board, JudgeClient())
    assert (board.entry(number).state, fake_judge) == (State.FAILED, [])


def test_the_progress_of_a_seed_is_stored(board: Leaderboard, monkeypatch: pytest.MonkeyPatch):
    reported: list[dict[str, Any]] = []

    def run(self: JudgeClient, job: Any, on_points: Any) -> Trial:
        on_points([(1, 32, 0.5), (2, 64, 0.97)])
        on_points([])
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
