"""Close file handles in forked children that must not keep them, such as a loader's workers."""

import os


def handles_closed_after_fork() -> set[int]:
    """Return a set of handles: a child forked while handles are in the set closes them and empties its copy."""
    handles: set[int] = set()

    def close_all() -> None:
        while handles:
            os.close(handles.pop())

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close_all)
    return handles
