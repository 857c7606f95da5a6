"""Close file handles in forked children that must not inherit them, such as a loader's workers."""

import os


def handles_closed_after_fork() -> set[int]:
    """Return a set of handles; every forked child closes the handles that are in the set, and empties its copy."""
    handles: set[int] = set()

    def close_all() -> None:
        while handles:
            os.close(handles.pop())

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close_all)
    return handles
