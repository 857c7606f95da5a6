"""Handles that a forked child does not keep."""

import os

import pytest

from trueloop.core.fork_safety import handles_closed_after_fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_child_closes_the_handles_and_the_parent_keeps_them():
    handles = handles_closed_after_fork()
    inside, outside = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
    handles.add(inside)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.fstat(outside)
            try:
                os.fstat(inside)
            except OSError:
                code = 0 if not handles else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert handles == {inside}
    handles.clear()
    for each in (inside, outside):
        os.close(each)


def test_without_fork_it_is_a_plain_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    assert handles_closed_after_fork() == set()
