"""A process is told from another one with its number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trueloop.runs.live.process_alive import is_alive, memory_mib, process_start_ticks


def test_this_one_lives():
    assert is_alive(os.getpid(), process_start_ticks(os.getpid()))
    assert is_alive(os.getpid(), "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says when a process began")
def test_another_one_with_its_number_is_not_it():
    assert process_start_ticks(os.getpid())
    assert not is_alive(os.getpid(), process_start_ticks(os.getpid()) + "1")
    assert (memory_mib() or 0) > 1


def test_one_that_has_ended_does_not():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not is_alive(child.pid, "")


@pytest.mark.parametrize("pid", [0, -1, 2**40, 2**70])
def test_what_is_no_process_does_not(pid):
    assert not is_alive(pid, "")
    assert process_start_ticks(2**40) == ""
