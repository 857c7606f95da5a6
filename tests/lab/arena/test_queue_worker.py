"""Somebody works on the queue as long as anything waits, and an interrupted wait leaves nothing behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from trueloop.core.errors import BoardError
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judge_client import Referee
from trueloop.lab.arena.judging import hand_in, turn
from trueloop.lab.arena.leaderboard import ATTEMPTS, Board, State
from trueloop.lab.arena.queue_worker import see_through
from trueloop.lab.arena.tracks import DIGITS


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "arena.sqlite3")


def test_waiting_for_an_entry_judges_what_is_before_it(board: Board, made_up_referee: list[Any]):
    number = hand_in(board, DIGITS, Entry(), "ada")
    assert see_through(board, number, lambda row, ahead: None).state == State.REACHED
    assert board.waiting() == 0


def test_an_interrupted_wait_takes_the_entry_back(board: Board, made_up_referee: list[Any]):
    number = hand_in(board, DIGITS, Entry(), "ada")

    def interrupt(row: Any, ahead: int) -> None:
        raise KeyboardInterrupt

    with turn(board.path), pytest.raises(KeyboardInterrupt):
        see_through(board, number, interrupt)
    assert [row.name for row in board.open_entries()] == ["baseline"]


def test_an_interrupted_judging_is_gone_on_with_however_often(board: Board, monkeypatch: pytest.MonkeyPatch):
    begun: list[int] = []

    def run(referee: Referee, job: Any, *_a: Any, **_k: Any) -> None:
        begun.append(job.seed)
        while not referee.closed:
            time.sleep(0.01)
        raise BoardError("The referee's process ended.")

    def interrupt(row: Any, ahead: int) -> None:
        if len(begun) > len(waits):
            raise KeyboardInterrupt

    monkeypatch.setattr(Referee, "run", run)
    monkeypatch.setattr(Board, "has_baseline", lambda *_: True)
    number = hand_in(board, DIGITS, Entry(), "ada")
    waits: list[int] = []
    while len(waits) < 2 * ATTEMPTS:
        with pytest.raises(KeyboardInterrupt):
            see_through(board, number, interrupt)
        waits.append(number)
    assert begun == [board.entry(number).seeds[0]] * (2 * ATTEMPTS)
    assert board.entry(number).state == State.JUDGING


def test_it_waits_while_another_process_judges_and_then_goes_on(board: Board, made_up_referee: list[Any]):
    number = hand_in(board, DIGITS, Entry(), "ada")
    held = turn(board.path)
    held.__enter__()
    heard: list[int] = []

    def told(row: Any, ahead: int) -> None:
        heard.append(ahead)
        if len(heard) == 3:
            assert made_up_referee == []
            held.__exit__(None, None, None)

    assert see_through(board, number, told).state == State.REACHED
    assert heard[:3] == [1, 1, 1]


def test_a_referee_that_never_works_is_reported_after_some_attempts(board: Board, monkeypatch: pytest.MonkeyPatch):
    def gone(*_a: Any, **_k: Any) -> None:
        raise BoardError("The referee's process ended: no torch here.")

    monkeypatch.setattr(Referee, "run", gone)
    monkeypatch.setattr(Board, "has_baseline", lambda *_: True)
    number = hand_in(board, DIGITS, Entry(), "ada")
    with pytest.raises(BoardError, match="no torch here"):
        see_through(board, number, lambda row, ahead: None)
    assert board.entry(number).state == State.FAILED
