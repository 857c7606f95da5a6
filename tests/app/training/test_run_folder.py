"""Test the lock of a run folder and the removal of an earlier run."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trueloop.app.training.run_folder import _OPEN_LOCKS, RUN_FILES, RunFolder
from trueloop.core.errors import RunFolderError

HOLD = """
import os, sys, time
from trueloop.app.training.run_folder import RunFolder
with RunFolder(sys.argv[1]).lock():
    if sys.argv[2] == "alone" or os.fork() == 0:
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


def holder(path: Path, mode: str = "alone") -> tuple[subprocess.Popen[str], int]:
    """A process that holds the lock, and the process that reported it: itself or a forked child."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), mode], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def test_the_second_process_is_shown_the_lock_holder(tmp_path: Path):
    process, _ = holder(tmp_path)
    try:
        with pytest.raises(RunFolderError) as caught, RunFolder(tmp_path).lock():
            pass
    finally:
        end(process)
    expected = f"Another process is training in '{tmp_path}': process {process.pid} on {platform.node()} since 20"
    assert caught.value.what.startswith(expected)
    assert not _OPEN_LOCKS


@pytest.mark.parametrize("mode", ["alone", "fork"])
def test_a_killed_holder_leaves_no_lock_even_in_its_children(tmp_path: Path, mode: str):
    process, child = holder(tmp_path, mode)
    assert (child == process.pid) == (mode == "alone")
    end(process)
    try:
        with RunFolder(tmp_path).lock():
            assert str(os.getpid()) in (tmp_path / ".lock").read_text()
    finally:
        if mode == "fork":
            os.kill(child, signal.SIGKILL)


def test_a_lock_check_does_not_prevent_a_run_from_starting(tmp_path: Path):
    (tmp_path / ".lock").touch()
    looking = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)  # like `runs list`, for microseconds
    looked = threading.Timer(0.02, os.close, [looking])
    looked.start()
    with RunFolder(tmp_path).lock():
        looked.join()


def test_the_lock_excludes_within_one_process(tmp_path: Path):
    with RunFolder(tmp_path).lock():
        with pytest.raises(RunFolderError, match=f"process {os.getpid()} on"), RunFolder(tmp_path).lock():
            pass
        with pytest.raises(RunFolderError, match="Another process"), RunFolder(tmp_path).lock():
            pass  # the failed attempt must not release the lock
    with RunFolder(tmp_path).lock():
        pass


def test_the_lock_is_released_after_an_error(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path).lock():
        raise ZeroDivisionError
    with RunFolder(tmp_path).lock():
        pass


def test_starting_over_removes_run_files_but_never_of_a_live_run(tmp_path: Path):
    for name in RUN_FILES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "mine.txt").write_text("x")
    with RunFolder(tmp_path).lock():
        with pytest.raises(RunFolderError), RunFolder(tmp_path).lock(fresh=True):
            pass
        assert sorted(os.listdir(tmp_path)) == sorted([*RUN_FILES, "mine.txt", ".lock"])
    with RunFolder(tmp_path).lock(fresh=True):
        assert sorted(os.listdir(tmp_path)) == [".lock", "mine.txt"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_causes_a_warning(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(RuntimeWarning, match=f"{tmp_path} is not locked"), RunFolder(tmp_path).lock():
        pass


def test_a_failing_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(RunFolderError, match="No space left on device"), RunFolder(tmp_path).lock():
        pass
    assert not _OPEN_LOCKS
