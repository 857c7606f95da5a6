"""The desk in the lab: bounded, and nothing of it outlives the server but the board."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trueloop.core.errors import BoardError
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judge_client import Referee
from trueloop.lab.arena.leaderboard import State
from trueloop.lab.arena.submission_queue import GOING, KEPT, Desk
from trueloop.lab.arena.tracks import DIGITS
from trueloop.lab.arena.trial import Trial


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "arena.sqlite3")
    yield desk
    desk.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_practice_run_is_looked_at_and_is_on_no_board(desk: Desk, made_up_referee: list[Any]):
    number = desk.practise(DIGITS, Entry(lr=0.05), 7)
    until(lambda: desk.look(number).done)
    going = desk.look(number)
    assert going.trial is not None
    assert (going.trial.end, going.trial.seed, going.curve[-1]) == ("reached", 7, (50, 1600, 0.97))
    assert [job.practice for job in made_up_referee] == [True]
    assert desk.board.waiting() == 0
    assert desk.board.judged_on(DIGITS.name, DIGITS.mark) == []


def test_an_entry_handed_in_is_judged_without_anybody_asking(desk: Desk, made_up_referee: list[Any]):
    number = desk.hand_in(DIGITS, Entry(lr=0.05), "ada")
    until(lambda: not desk.board.entry(number).open)
    assert desk.board.entry(number).state == State.REACHED
    again = desk.replay(number)
    until(lambda: desk.look(again).done)
    replayed = desk.look(again).replay
    assert replayed is not None
    assert replayed.same


def test_only_so_many_go_on_at_once(desk: Desk, made_up_referee: list[Any], monkeypatch: pytest.MonkeyPatch):
    free = threading.Event()
    run = Referee.run

    def slow(*given: Any, **named: Any) -> Any:
        free.wait(30)
        return run(*given, **named)

    monkeypatch.setattr(Referee, "run", slow)
    numbers = [desk.practise(DIGITS, Entry(lr=0.05), seed) for seed in range(GOING)]
    with pytest.raises(BoardError, match=f"{GOING} runs go on already"):
        desk.practise(DIGITS, Entry(), 0)
    free.set()
    until(lambda: all(desk.look(number).done for number in numbers))
    assert desk.practise(DIGITS, Entry(lr=0.05), 0) not in numbers


def test_one_that_the_referee_has_not_heard_of_yet_can_be_stopped_too(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    may_begin, stopped = threading.Event(), threading.Event()

    def run(self: Referee, job: Any, tell: Any, *, began: Callable[[int], None]) -> Trial:
        may_begin.wait(30)
        began(17)
        return Trial(seed=job.seed, end="stopped" if stopped.wait(5) else "reached")

    monkeypatch.setattr(Referee, "run", run)
    monkeypatch.setattr(Referee, "stop", lambda self, number: stopped.set() if number == 17 else None)
    number = desk.practise(DIGITS, Entry(), 1)
    desk.stop(number)
    may_begin.set()
    until(lambda: desk.look(number).done)
    assert desk.look(number).trial == Trial(seed=1, end="stopped")


def test_the_oldest_are_forgotten(desk: Desk, made_up_referee: list[Any]):
    first = desk.practise(DIGITS, Entry(lr=0.05), 0)
    until(lambda: desk.look(first).done)
    for seed in range(KEPT):
        number = desk.practise(DIGITS, Entry(lr=0.05), seed)
        until(lambda number=number: desk.look(number).done)
    with pytest.raises(BoardError, match="no longer known"):
        desk.look(first)


def test_what_went_wrong_is_kept_for_whoever_looks(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    def gone(*_a: Any, **_k: Any) -> None:
        raise BoardError("The referee's process ended.")

    monkeypatch.setattr(Referee, "run", gone)
    number = desk.practise(DIGITS, Entry(), 0)
    until(lambda: desk.look(number).done)
    assert str(desk.look(number).trouble) == "The referee's process ended."


def test_an_error_that_nobody_expected_is_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(*given: Any, **named: Any) -> Any:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(Referee, "run", broken)
    number = desk.practise(DIGITS, Entry(), 1)
    until(lambda: desk.look(number).done)
    trouble = desk.look(number).trouble
    assert trouble is not None
    assert "ZeroDivisionError: by nought" in trouble.what
    assert "Begin it again" in trouble.fix
    assert "in broken" in capsys.readouterr().err
