"""The practice runs, replays and submissions of the lab's server."""

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


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_practice_run_is_not_on_the_leaderboard(queue: SubmissionQueue, fake_judge: list[Any]):
    number = queue.start_practice(DIGITS, Entry(lr=0.05), 7)
    wait_until(lambda: queue.find_run(number).done)
    background_run = queue.find_run(number)
    assert background_run.trial is not None
    assert (background_run.trial.end, background_run.trial.seed) == ("reached", 7)
    assert background_run.curve[-1] == (50, 1600, 0.97)
    assert [job.practice for job in fake_judge] == [True]
    assert queue.leaderboard.count_waiting() == 0
    assert queue.leaderboard.judged_entries(DIGITS.name, DIGITS.fingerprint) == []


def test_a_submitted_entry_is_judged_in_the_background(queue: SubmissionQueue, fake_judge: list[Any]):
    number = queue.submit(DIGITS, Entry(lr=0.05), "ada")
    wait_until(lambda: not queue.leaderboard.entry(number).is_open)
    assert queue.leaderboard.entry(number).state == State.REACHED
    again = queue.start_replay(number)
    wait_until(lambda: queue.find_run(again).done)
    replayed = queue.find_run(again).replay
    assert replayed is not None
    assert replayed.same


def test_the_number_of_runs_is_limited(queue: SubmissionQueue, fake_judge: list[Any], monkeypatch: pytest.MonkeyPatch):
    may_continue = threading.Event()
    run = JudgeClient.run

    def slow(*args: Any, **kwargs: Any) -> Any:
        may_continue.wait(30)
        return run(*args, **kwargs)

    monkeypatch.setattr(JudgeClient, "run", slow)
    numbers = [queue.start_practice(DIGITS, Entry(lr=0.05), seed) for seed in range(MAX_RUNNING)]
    with pytest.raises(BoardError, match=f"{MAX_RUNNING} runs are active already"):
        queue.start_practice(DIGITS, Entry(), 0)
    may_continue.set()
    wait_until(lambda: all(queue.find_run(number).done for number in numbers))
    assert queue.start_practice(DIGITS, Entry(lr=0.05), 0) not in numbers


def test_a_run_can_be_stopped_before_it_starts(queue: SubmissionQueue, monkeypatch: pytest.MonkeyPatch):
    may_begin, stopped = threading.Event(), threading.Event()

    def run(self: JudgeClient, job: Any, on_points: Any, *, on_start: Callable[[int], None]) -> Trial:
        may_begin.wait(30)
        on_start(17)
        return Trial(seed=job.seed, end="stopped" if stopped.wait(5) else "reached")

    monkeypatch.setattr(JudgeClient, "run", run)
    monkeypatch.setattr(JudgeClient, "stop", lambda self, number: stopped.set() if number == 17 else None)
    number = queue.start_practice(DIGITS, Entry(), 1)
    queue.stop(number)
    may_begin.set()
    wait_until(lambda: queue.find_run(number).done)
    assert queue.find_run(number).trial == Trial(seed=1, end="stopped")


def test_the_oldest_runs_are_removed(queue: SubmissionQueue, fake_judge: list[Any]):
    first = queue.start_practice(DIGITS, Entry(lr=0.05), 0)
    wait_until(lambda: queue.find_run(first).done)
    for seed in range(MAX_STORED):
        number = queue.start_practice(DIGITS, Entry(lr=0.05), seed)
        wait_until(lambda number=number: queue.find_run(number).done)
    with pytest.raises(BoardError, match="no longer known"):
        queue.find_run(first)


def test_the_error_of_a_run_is_stored(queue: SubmissionQueue, monkeypatch: pytest.MonkeyPatch):
    def raise_error(*_a: Any, **_k: Any) -> None:
        raise BoardError("The referee's process ended.")

    monkeypatch.setattr(JudgeClient, "run", raise_error)
    number = queue.start_practice(DIGITS, Entry(), 0)
    wait_until(lambda: queue.find_run(number).done)
    assert str(queue.find_run(number).error) == "The referee's process ended."


def test_an_unexpected_error_is_reported(
    queue: SubmissionQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(JudgeClient, "run", broken)
    number = queue.start_practice(DIGITS, Entry(), 1)
    wait_until(lambda: queue.find_run(number).done)
    error = queue.find_run(number).error
    assert error is not None
    assert "ZeroDivisionError: by nought" in error.what
    assert "Start it again" in error.fix
    assert "in broken" in capsys.readouterr().err
