"""File handles that a forked child must not keep, such as a loader's worker."""

from __future__ import annotations

import os


def closed_in_children() -> set[int]:
    """Return a set to put handles into: a child forked while they are in it closes them, and its set is empty."""
    handles: set[int] = set()

    def let_go() -> None:
        while handles:
            os.close(handles.pop())

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=let_go)
    return handles
