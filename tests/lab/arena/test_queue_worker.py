"""The queue is judged until it is empty, and an interrupted wait withdraws the entry."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from trueloop.core.errors import BoardError
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judge_client import JudgeClient
from trueloop.lab.arena.judging import judging_lock, submit_entry
from trueloop.lab.arena.leaderboard import MAX_ATTEMPTS, Leaderboard, State
from trueloop.lab.arena.queue_worker import wait_until_judged
from trueloop.lab.arena.tracks import DIGITS


@pytest.fixture
def board(tmp_path: Path) -> Leaderboard:
    return Leaderboard(tmp_path / "arena.sqlite3")


def test_waiting_for_an_entry_judges_it_and_those_before_it(board: Leaderboard, fake_judge: list[Any]):
    number = submit_entry(board, DIGITS, Entry(), "ada")
    assert wait_until_judged(board, number, lambda row, ahead: None).state == State.REACHED
    assert board.count_waiting() == 0


def test_an_interrupted_wait_withdraws_the_entry(board: Leaderboard, fake_judge: list[Any]):
    number = submit_entry(board, DIGITS, Entry(), "ada")

    def interrupt(row: Any, ahead: int) -> None:
        raise KeyboardInterrupt

    with judging_lock(board.path), pytest.raises(KeyboardInterrupt):
        wait_until_judged(board, number, interrupt)
    assert [row.name for row in board.open_entries()] == ["baseline"]


def test_an_interrupted_judging_can_always_be_continued(board: Leaderboard, monkeypatch: pytest.MonkeyPatch):
    started_seeds: list[int] = []

    def run(judge: JudgeClient, job: Any, *_a: Any, **_k: Any) -> None:
        started_seeds.append(job.seed)
        while not judge.closed:
            time.sleep(0.01)
        raise BoardError("The judge's process ended.")

    def interrupt(row: Any, ahead: int) -> None:
        if len(started_seeds) > len(waits):
            raise KeyboardInterrupt

    monkeypatch.setattr(JudgeClient, "run", run)
    monkeypatch.setattr(Leaderboard, "has_baseline", lambda *_: True)
    number = submit_entry(board, DIGITS, Entry(), "ada")
    waits: list[int] = []
    while len(waits) < 2 * MAX_ATTEMPTS:
        with pytest.raises(KeyboardInterrupt):
            wait_until_judged(board, number, interrupt)
        waits.append(number)
    assert started_seeds == [board.entry(number).seeds[0]] * (2 * MAX_ATTEMPTS)
    assert board.entry(number).state == State.JUDGING


def test_waiting_continues_while_another_process_judges(board: Leaderboard, fake_judge: list[Any]):
    number = submit_entry(board, DIGITS, Entry(), "ada")
    lock = judging_lock(board.path)
    lock.__enter__()
    reported: list[int] = []

    def on_progress(row: Any, ahead: int) -> None:
        reported.append(ahead)
        if len(reported) == 3:
            assert fake_judge == []
            lock.__exit__(None, None, None)

    assert wait_until_judged(board, number, on_progress).state == State.REACHED
    assert reported[:3] == [1, 1, 1]


def test_a_judge_that_never_works_is_reported_after_some_attempts(board: Leaderboard, monkeypatch: pytest.MonkeyPatch):
    def raise_error(*_a: Any, **_k: Any) -> None:
        raise BoardError("The judge's process ended: no torch here.")

    monkeypatch.setattr(JudgeClient, "run", raise_error)
    monkeypatch.setattr(Leaderboard, "has_baseline", lambda *_: True)
    number = submit_entry(board, DIGITS, Entry(), "ada")
    with pytest.raises(BoardError, match="no torch here"):
        wait_until_judged(board, number, lambda row, ahead: None)
    assert board.entry(number).state == State.FAILED
