"""Test incremental reads of a growing file: complete lines, in chunks, from the start if it was replaced."""

from __future__ import annotations

import os

import pytest

from trueloop.core.errors import InvalidData
from trueloop.runs.live import tail as module
from trueloop.runs.live.tail import Tail


def append(path, text):
    with path.open("ab") as file:
        file.write(text)


def test_only_complete_lines_are_returned_once(tmp_path):
    path = tmp_path / "f"
    append(path, b"one\ntwo\nthr")
    tail = Tail(path)
    assert tail.read_lines() == [b"one\n", b"two\n"]
    assert (tail.read_lines(), tail.remaining) == ([], 3)
    append(path, b"ee\rstill\n")
    assert tail.read_lines() == [b"three\rstill\n"]
    assert (tail.remaining, tail.restarts) == (0, 0)


def test_one_chunk_at_a_time_and_a_long_line_completely(tmp_path):
    path = tmp_path / "f"
    append(path, b"a" * 10 + b"\n" + b"b" * 100 + b"\n" + b"c\n")
    tail = Tail(path)
    pieces = [tail.read_lines(16) for _ in range(3)]
    assert [line for piece in pieces for line in piece] == [b"a" * 10 + b"\n", b"b" * 100 + b"\n", b"c\n"]
    assert len(pieces[0]) == 1


def test_a_torn_line_may_be_truncated_and_rewritten(tmp_path):
    path = tmp_path / "f"
    append(path, b"one\nto")
    tail = Tail(path)
    tail.read_lines()
    os.truncate(path, 4)
    append(path, b"two\n")
    assert tail.read_lines() == [b"two\n"]
    assert tail.restarts == 0


@pytest.mark.parametrize("how", ["another", "shorter", "longer"])
def test_a_rewritten_file_is_read_from_its_start(tmp_path, how):
    path = tmp_path / "f"
    append(path, b"one\ntwo\n")
    tail = Tail(path)
    tail.read_lines()
    if how == "another":
        path.rename(tmp_path / "old")
    else:
        path.write_bytes(b"")
    append(path, b"1\n" if how == "shorter" else b"first\nsecond\n")
    assert tail.read_lines()[0] in (b"1\n", b"first\n")
    assert tail.restarts == 1


def test_an_overlong_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 64)
    append(tmp_path / "f", b"x" * 200)
    with pytest.raises(InvalidData, match="has a line of more than"):
        Tail(tmp_path / "f").read_lines(16)


def test_special_files_are_not_opened_and_do_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidData, match="not a regular file"):
        Tail(tmp_path / "pipe").read_lines()
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        Tail(tmp_path / "link").read_lines()
