"""Test complete lines of a file that grows and is truncated, and its lock."""

import subprocess
import sys
from io import FileIO

import pytest

from trueloop.runs.tracking import journal_file
from trueloop.runs.tracking.journal_file import checksum_before, complete_lines, journal_lock


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_complete_lines_are_yielded_with_their_offsets(tmp_path, monkeypatch, block):
    monkeypatch.setattr(journal_file, "BLOCK_BYTES", block)
    path = tmp_path / "journal"
    path.write_bytes(b"one\ntwo\n\nfour\ntorn")
    with FileIO(path) as file:
        lines = [(0, b"one\n"), (4, b"two\n"), (8, b"\n"), (9, b"four\n")]
        assert list(complete_lines(file, 0)) == lines
        assert list(complete_lines(file, 8)) == lines[2:]
        assert list(complete_lines(file, 0, 8)) == lines[:2]
        assert list(complete_lines(file, 0, 9)) == lines[:3]
        assert list(complete_lines(file, 14)) == []


def test_a_truncated_torn_line_is_not_buffered(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b"one\nto")
    with FileIO(path) as file:
        assert list(complete_lines(file, 0)) == [(0, b"one\n")]
        path.write_bytes(b"one\nthree\n")
        assert list(complete_lines(file, 4)) == [(4, b"three\n")]


def test_the_file_may_be_read_at_another_offset_between_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_file, "BLOCK_BYTES", 4)
    path = tmp_path / "journal"
    path.write_bytes(b"one\ntwo\nthree\n")
    with FileIO(path) as file:
        found = []
        for place, line in complete_lines(file, 0):
            checksum_before(file, place)
            found.append(line)
    assert found == [b"one\n", b"two\n", b"three\n"]


def test_a_checksum_identifies_the_bytes_before_an_offset(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b"one\ntwo\nthree\n")
    with FileIO(path) as file:
        sealed = checksum_before(file, 8)
        assert sealed
        assert checksum_before(file, 0) == checksum_before(file, 5) == checksum_before(file, 100) == ""
    path.write_bytes(b"one\ntwO\nthree\n")
    with FileIO(path) as file:
        assert checksum_before(file, 8) not in ("", sealed)


def test_the_lock_admits_one_process(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b"")
    script = f"import fcntl; fcntl.flock(open({str(path)!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def elsewhere():
        return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0

    with FileIO(path) as file:
        with journal_lock(file) as mine:
            assert mine
            assert not elsewhere()
        assert elsewhere()
