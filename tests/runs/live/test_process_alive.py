"""Test that a process is distinguished from another one with the same id."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trueloop.runs.live.process_alive import is_alive, memory_mib, process_start_ticks


def test_this_process_is_alive():
    assert is_alive(os.getpid(), process_start_ticks(os.getpid()))
    assert is_alive(os.getpid(), "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says when a process began")
def test_another_process_with_its_id_is_not_it():
    assert process_start_ticks(os.getpid())
    assert not is_alive(os.getpid(), process_start_ticks(os.getpid()) + "1")
    assert (memory_mib() or 0) > 1


def test_an_ended_process_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not is_alive(child.pid, "")


@pytest.mark.parametrize("pid", [0, -1, 2**40, 2**70])
def test_an_invalid_id_is_not_alive(pid):
    assert not is_alive(pid, "")
    assert process_start_ticks(2**40) == ""
