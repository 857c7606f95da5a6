"""File handles that a forked child must not keep, such as a loader's worker."""

from __future__ import annotations

import os


def handles_closed_after_fork() -> set[int]:
    """Return a set to put handles into: a child forked while they are in it closes them, and its set is empty."""
    handles: set[int] = set()

    def close_all() -> None:
        while handles:
            os.close(handles.pop())

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close_all)
    return handles
