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
from trueloop.lab.arena.judge_client import JudgeClient
from trueloop.lab.arena.leaderboard import State
from trueloop.lab.arena.submission_queue import MAX_RUNNING, MAX_STORED, SubmissionQueue
from trueloop.lab.arena.tracks import DIGITS
from trueloop.lab.arena.trial import Trial


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[SubmissionQueue]:
    desk = SubmissionQueue(tmp_path / "arena.sqlite3")
    yield desk
    desk.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_practice_run_is_looked_at_and_is_on_no_board(desk: SubmissionQueue, made_up_referee: list[Any]):
    number = desk.start_practice(DIGITS, Entry(lr=0.05), 7)
    until(lambda: desk.find_run(number).done)
    going = desk.find_run(number)
    assert going.trial is not None
    assert (going.trial.end, going.trial.seed, going.curve[-1]) == ("reached", 7, (50, 1600, 0.97))
    assert [job.practice for job in made_up_referee] == [True]
    assert desk.leaderboard.count_waiting() == 0
    assert desk.leaderboard.judged_entries(DIGITS.name, DIGITS.fingerprint) == []


def test_an_entry_handed_in_is_judged_without_anybody_asking(desk: SubmissionQueue, made_up_referee: list[Any]):
    number = desk.submit(DIGITS, Entry(lr=0.05), "ada")
    until(lambda: not desk.leaderboard.entry(number).is_open)
    assert desk.leaderboard.entry(number).state == State.REACHED
    again = desk.start_replay(number)
    until(lambda: desk.find_run(again).done)
    replayed = desk.find_run(again).replay
    assert replayed is not None
    assert replayed.same


def test_only_so_many_go_on_at_once(desk: SubmissionQueue, made_up_referee: list[Any], monkeypatch: pytest.MonkeyPatch):
    free = threading.Event()
    run = JudgeClient.run

    def slow(*given: Any, **named: Any) -> Any:
        free.wait(30)
        return run(*given, **named)

    monkeypatch.setattr(JudgeClient, "run", slow)
    numbers = [desk.start_practice(DIGITS, Entry(lr=0.05), seed) for seed in range(MAX_RUNNING)]
    with pytest.raises(BoardError, match=f"{MAX_RUNNING} runs go on already"):
        desk.start_practice(DIGITS, Entry(), 0)
    free.set()
    until(lambda: all(desk.find_run(number).done for number in numbers))
    assert desk.start_practice(DIGITS, Entry(lr=0.05), 0) not in numbers


def test_one_that_the_referee_has_not_heard_of_yet_can_be_stopped_too(
    desk: SubmissionQueue, monkeypatch: pytest.MonkeyPatch
):
    may_begin, stopped = threading.Event(), threading.Event()

    def run(self: JudgeClient, job: Any, tell: Any, *, began: Callable[[int], None]) -> Trial:
        may_begin.wait(30)
        began(17)
        return Trial(seed=job.seed, end="stopped" if stopped.wait(5) else "reached")

    monkeypatch.setattr(JudgeClient, "run", run)
    monkeypatch.setattr(JudgeClient, "stop", lambda self, number: stopped.set() if number == 17 else None)
    number = desk.start_practice(DIGITS, Entry(), 1)
    desk.stop(number)
    may_begin.set()
    until(lambda: desk.find_run(number).done)
    assert desk.find_run(number).trial == Trial(seed=1, end="stopped")


def test_the_oldest_are_forgotten(desk: SubmissionQueue, made_up_referee: list[Any]):
    first = desk.start_practice(DIGITS, Entry(lr=0.05), 0)
    until(lambda: desk.find_run(first).done)
    for seed in range(MAX_STORED):
        number = desk.start_practice(DIGITS, Entry(lr=0.05), seed)
        until(lambda number=number: desk.find_run(number).done)
    with pytest.raises(BoardError, match="no longer known"):
        desk.find_run(first)


def test_what_went_wrong_is_kept_for_whoever_looks(desk: SubmissionQueue, monkeypatch: pytest.MonkeyPatch):
    def gone(*_a: Any, **_k: Any) -> None:
        raise BoardError("The referee's process ended.")

    monkeypatch.setattr(JudgeClient, "run", gone)
    number = desk.start_practice(DIGITS, Entry(), 0)
    until(lambda: desk.find_run(number).done)
    assert str(desk.find_run(number).error) == "The referee's process ended."


def test_an_error_that_nobody_expected_is_told(
    desk: SubmissionQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(*given: Any, **named: Any) -> Any:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(JudgeClient, "run", broken)
    number = desk.start_practice(DIGITS, Entry(), 1)
    until(lambda: desk.find_run(number).done)
    trouble = desk.find_run(number).error
    assert trouble is not None
    assert "ZeroDivisionError: by nought" in trouble.what
    assert "Begin it again" in trouble.fix
    assert "in broken" in capsys.readouterr().err
