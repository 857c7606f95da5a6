"""Somebody works on the queue as long as anything waits, and an interrupted wait leaves nothing behind."""

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


def test_waiting_for_an_entry_judges_what_is_before_it(board: Leaderboard, made_up_referee: list[Any]):
    number = submit_entry(board, DIGITS, Entry(), "ada")
    assert wait_until_judged(board, number, lambda row, ahead: None).state == State.REACHED
    assert board.count_waiting() == 0


def test_an_interrupted_wait_takes_the_entry_back(board: Leaderboard, made_up_referee: list[Any]):
    number = submit_entry(board, DIGITS, Entry(), "ada")

    def interrupt(row: Any, ahead: int) -> None:
        raise KeyboardInterrupt

    with judging_lock(board.path), pytest.raises(KeyboardInterrupt):
        wait_until_judged(board, number, interrupt)
    assert [row.name for row in board.open_entries()] == ["baseline"]


def test_an_interrupted_judging_is_gone_on_with_however_often(board: Leaderboard, monkeypatch: pytest.MonkeyPatch):
    begun: list[int] = []

    def run(referee: JudgeClient, job: Any, *_a: Any, **_k: Any) -> None:
        begun.append(job.seed)
        while not referee.closed:
            time.sleep(0.01)
        raise BoardError("The referee's process ended.")

    def interrupt(row: Any, ahead: int) -> None:
        if len(begun) > len(waits):
            raise KeyboardInterrupt

    monkeypatch.setattr(JudgeClient, "run", run)
    monkeypatch.setattr(Leaderboard, "has_baseline", lambda *_: True)
    number = submit_entry(board, DIGITS, Entry(), "ada")
    waits: list[int] = []
    while len(waits) < 2 * MAX_ATTEMPTS:
        with pytest.raises(KeyboardInterrupt):
            wait_until_judged(board, number, interrupt)
        waits.append(number)
    assert begun == [board.entry(number).seeds[0]] * (2 * MAX_ATTEMPTS)
    assert board.entry(number).state == State.JUDGING


def test_it_waits_while_another_process_judges_and_then_goes_on(board: Leaderboard, made_up_referee: list[Any]):
    number = submit_entry(board, DIGITS, Entry(), "ada")
    held = judging_lock(board.path)
    held.__enter__()
    heard: list[int] = []

    def told(row: Any, ahead: int) -> None:
        heard.append(ahead)
        if len(heard) == 3:
            assert made_up_referee == []
            held.__exit__(None, None, None)

    assert wait_until_judged(board, number, told).state == State.REACHED
    assert heard[:3] == [1, 1, 1]


def test_a_referee_that_never_works_is_reported_after_some_attempts(
    board: Leaderboard, monkeypatch: pytest.MonkeyPatch
):
    def gone(*_a: Any, **_k: Any) -> None:
        raise BoardError("The referee's process ended: no torch here.")

    monkeypatch.setattr(JudgeClient, "run", gone)
    monkeypatch.setattr(Leaderboard, "has_baseline", lambda *_: True)
    number = submit_entry(board, DIGITS, Entry(), "ada")
    with pytest.raises(BoardError, match="no torch here"):
        wait_until_judged(board, number, lambda row, ahead: None)
    assert board.entry(number).state == State.FAILED
