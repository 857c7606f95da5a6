"""Where a program is: whole or not at all, however it is read while it is written."""

from __future__ import annotations

import os

import pytest

from trueloop.runs.live.folder import NOW
from trueloop.runs.live.position_file import WIDTH, opened, read_now, sealed, still_runs, tell_now
from trueloop.runs.live.process_alive import mark_of


def test_what_was_told_last_is_read(tmp_path):
    tell_now(tmp_path, {"updates": 123456, "rate": {"data": 0.5}})
    tell_now(tmp_path, {"updates": 7})
    assert read_now(tmp_path) == {"updates": 7}
    assert (tmp_path / NOW).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("told", [{}, {"pid": "1"}, {"pid": 2**70}, {"pid": -1}, {"pid": True}, {"ended": 0}])
def test_who_says_nothing_of_use_does_not_run(told):
    assert not still_runs(told)


def test_a_program_runs_until_it_says_otherwise():
    told = {"pid": os.getpid(), "mark": mark_of(os.getpid())}
    assert still_runs(told)
    assert not still_runs({**told, "ended": 0})


def test_what_is_being_written_is_not_taken_for_a_record():
    whole = sealed({"updates": 1234, "s": 5.0})
    assert len(whole) == len(sealed({"updates": 1, "rate": None})) == WIDTH
    assert opened(whole) == b'{"updates":1234,"s":5.0}'
    other = sealed({"updates": 99999, "s": 7.25})
    torn = [whole[:cut] + other[cut:] for cut in range(1, 40)]
    assert {opened(each) for each in torn} <= {None, opened(whole), opened(other)}
    assert opened(b"") is None


def test_what_is_no_file_says_nothing(tmp_path):
    os.mkfifo(tmp_path / NOW)
    assert read_now(tmp_path) == {}
