from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from trueloop.training.checkpoint.durable_files import (
    FileStamp,
    damage_error,
    sync,
    unreadable,
    unwritable,
    write_synced,
)


def test_the_stamp_matches_the_file(tmp_path: Path):
    parts = [b"ab", memoryview(b"c" * 5000), b""]
    stamp = write_synced(tmp_path / "a", parts)
    content = b"ab" + b"c" * 5000
    assert (tmp_path / "a").read_bytes() == content
    assert stamp == FileStamp(size=5002, sha256=hashlib.sha256(content).hexdigest())


def test_file_and_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    write_synced(tmp_path / "a", [b"a"])
    sync(tmp_path)
    assert synced == [str(tmp_path / "a"), str(tmp_path)]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "Free space"),
        (errno.EDQUOT, "Free space"),
        (errno.EROFS, "Allow writing"),
        (errno.EACCES, "Allow writing"),
        (errno.EIO, "choose another run folder"),
    ],
)
def test_the_error_of_a_failed_write_has_a_fix(number: int, message: str):
    error = unwritable(Path("runs/a/b"), OSError(number, os.strerror(number)))
    assert error.what == f"runs/a/b could not be written: {os.strerror(number)}."
    assert message in error.fix
    assert "runs/a" in error.fix


def test_errors_of_reading_and_damage_name_the_file():
    assert unreadable(Path("a"), OSError(5, "bad disk")).what == "a could not be read: bad disk."
    assert damage_error(Path("a"), "it is torn").what == "a is damaged: it is torn."
