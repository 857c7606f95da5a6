"""A row run again: the same to the bit, or said to differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trueloop.core.errors import BoardError
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judge_client import Referee
from trueloop.lab.arena.judging import hand_in, judge_waiting
from trueloop.lab.arena.leaderboard import Board
from trueloop.lab.arena.replay import replay
from trueloop.lab.arena.tracks import DIGITS


@pytest.fixture
def row(tmp_path: Path, made_up_referee: list[Any]):
    board = Board(tmp_path / "arena.sqlite3")
    number = hand_in(board, DIGITS, Entry(lr=0.02), "ada")
    judge_waiting(board, Referee())
    return board.entry(number)


def test_the_same_seeds_and_settings_are_run(row, made_up_referee: list[Any]):
    made_up_referee.clear()
    again = replay(row, Referee())
    assert again.same
    assert again.differing == {}
    assert [(job.seed, job.entry) for job in made_up_referee] == [(seed, Entry(lr=0.02)) for seed in row.seeds]


@pytest.mark.parametrize("change", [{"updates": 19}, {"digest": "other"}, {"end": "not reached"}, {"accuracy": 0.961}])
def test_a_number_that_somebody_wrote_is_found_out(row, change):
    forged = replace(row, trials=(replace(row.trials[0], **change), *row.trials[1:]))
    again = replay(forged, Referee())
    assert [seed.same for seed in again.seeds] == [False, True, True, True, True]
    assert not again.same


def test_time_is_not_expected_to_be_the_same(row):
    assert replay(replace(row, trials=tuple(replace(trial, time=9.9) for trial in row.trials)), Referee()).same


def test_other_versions_are_named(row):
    again = replay(replace(row, versions={"torch": "1.0"}), Referee())
    assert again.differing == {"torch": ("1.0", "2.0")}


def test_an_entry_of_a_track_that_has_changed_is_refused(row):
    with pytest.raises(BoardError, match="not what it was"):
        replay(replace(row, mark="older"), Referee())


def test_an_entry_without_a_result_is_refused(row):
    with pytest.raises(BoardError, match="no result"):
        replay(replace(row, trials=()), Referee())
