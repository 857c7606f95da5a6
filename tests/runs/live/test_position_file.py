"""Test that a position is read completely or not at all during writes."""

from __future__ import annotations

import os

import pytest

from trueloop.runs.live.folder import POSITION_NAME
from trueloop.runs.live.position_file import (
    LINE_BYTES,
    decode_position,
    encode_position,
    is_running,
    read_position,
    write_position,
)
from trueloop.runs.live.process_alive import process_start_ticks


def test_the_last_written_position_is_read(tmp_path):
    write_position(tmp_path, {"updates": 123456, "timing": {"data_share": 0.5}})
    write_position(tmp_path, {"updates": 7})
    assert read_position(tmp_path) == {"updates": 7}
    assert (tmp_path / POSITION_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("position", [{}, {"pid": "1"}, {"pid": 2**70}, {"pid": -1}, {"pid": True}, {"ended": 0}])
def test_an_invalid_position_counts_as_not_running(position):
    assert not is_running(position)


def test_a_program_runs_until_its_end_is_recorded():
    position = {"pid": os.getpid(), "start_ticks": process_start_ticks(os.getpid())}
    assert is_running(position)
    assert not is_running({**position, "ended": 0})


def test_a_partial_write_is_not_read():
    whole = encode_position({"updates": 1234, "s": 5.0})
    assert len(whole) == len(encode_position({"updates": 1, "timing": None})) == LINE_BYTES
    assert decode_position(whole) == b'{"updates":1234,"s":5.0}'
    other = encode_position({"updates": 99999, "s": 7.25})
    torn = [whole[:cut] + other[cut:] for cut in range(1, 40)]
    assert {decode_position(each) for each in torn} <= {None, decode_position(whole), decode_position(other)}
    assert decode_position(b"") is None


def test_a_missing_file_is_an_empty_position(tmp_path):
    os.mkfifo(tmp_path / POSITION_NAME)
    assert read_position(tmp_path) == {}
