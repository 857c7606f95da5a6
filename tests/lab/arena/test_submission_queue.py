"""The queue in the lab: bounded, and nothing of it outlives the server but the board."""

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
def queue(tmp_path: Path) -> Iterator[SubmissionQueue]:
    queue = SubmissionQueue(tmp_path / "arena.sqlite3")
    yield queue
    queue.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_practice_run_is_not_on_the_leaderboard(queue: SubmissionQueue, made_up_referee: list[Any]):
    number = queue.start_practice(DIGITS, Entry(lr=0.05), 7)
    until(lambda: queue.find_run(number).done)
    going = queue.find_run(number)
    assert going.trial is not None
    assert (going.trial.end, going.trial.seed, going.curve[-1]) == ("reached", 7, (50, 1600, 0.97))
    assert [job.practice for job in made_up_referee] == [True]
    assert queue.leaderboard.count_waiting() == 0
    assert queue.leaderboard.judged_entries(DIGITS.name, DIGITS.fingerprint) == []


def test_an_entry_handed_in_is_judged_without_anybody_asking(queue: SubmissionQueue, made_up_referee: list[Any]):
    number = queue.submit(DIGITS, Entry(lr=0.05), "ada")
    until(lambda: not queue.leaderboard.entry(number).is_open)
    assert queue.leaderboard.entry(number).state == State.REACHED
    again = queue.start_replay(number)
    until(lambda: queue.find_run(again).done)
    replayed = queue.find_run(again).replay
    assert replayed is not None
    assert replayed.same


def test_the_number_of_runs_is_limited(
    queue: SubmissionQueue, made_up_referee: list[Any], monkeypatch: pytest.MonkeyPatch
):
    free = threading.Event()
    run = JudgeClient.run

    def slow(*given: Any, **named: Any) -> Any:
        free.wait(30)
        return run(*given, **named)

    monkeypatch.setattr(JudgeClient, "run", slow)
    numbers = [queue.start_practice(DIGITS, Entry(lr=0.05), seed) for seed in range(MAX_RUNNING)]
    with pytest.raises(BoardError, match=f"{MAX_RUNNING} runs are active already"):
        queue.start_practice(DIGITS, Entry(), 0)
    free.set()
    until(lambda: all(queue.find_run(number).done for number in numbers))
    assert queue.start_practice(DIGITS, Entry(lr=0.05), 0) not in numbers


def test_a_run_can_be_stopped_before_it_starts(queue: SubmissionQueue, monkeypatch: pytest.MonkeyPatch):
    may_begin, stopped = threading.Event(), threading.Event()

    def run(self: JudgeClient, job: Any, tell: Any, *, on_start: Callable[[int], None]) -> Trial:
        may_begin.wait(30)
        on_start(17)
        return Trial(seed=job.seed, end="stopped" if stopped.wait(5) else "reached")

    monkeypatch.setattr(JudgeClient, "run", run)
    monkeypatch.setattr(JudgeClient, "stop", lambda self, number: stopped.set() if number == 17 else None)
    number = queue.start_practice(DIGITS, Entry(), 1)
    queue.stop(number)
    may_begin.set()
    until(lambda: queue.find_run(number).done)
    assert queue.find_run(number).trial == Trial(seed=1, end="stopped")


def test_the_oldest_are_forgotten(queue: SubmissionQueue, made_up_referee: list[Any]):
    first = queue.start_practice(DIGITS, Entry(lr=0.05), 0)
    until(lambda: queue.find_run(first).done)
    for seed in range(MAX_STORED):
        number = queue.start_practice(DIGITS, Entry(lr=0.05), seed)
        until(lambda number=number: queue.find_run(number).done)
    with pytest.raises(BoardError, match="no longer known"):
        queue.find_run(first)


def test_what_went_wrong_is_kept_for_whoever_looks(queue: SubmissionQueue, monkeypatch: pytest.MonkeyPatch):
    def gone(*_a: Any, **_k: Any) -> None:
        raise BoardError("The referee's process ended.")

    monkeypatch.setattr(JudgeClient, "run", gone)
    number = queue.start_practice(DIGITS, Entry(), 0)
    until(lambda: queue.find_run(number).done)
    assert str(queue.find_run(number).error) == "The referee's process ended."


def test_an_unexpected_error_is_reported(
    queue: SubmissionQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(*given: Any, **named: Any) -> Any:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(JudgeClient, "run", broken)
    number = queue.start_practice(DIGITS, Entry(), 1)
    until(lambda: queue.find_run(number).done)
    trouble = queue.find_run(number).error
    assert trouble is not None
    assert "ZeroDivisionError: by nought" in trouble.what
    assert "Start it again" in trouble.fix
    assert "in broken" in capsys.readouterr().err
