"""Whether a process is training in a run folder right now, found out without standing in its way."""

from __future__ import annotations

import os
from pathlib import Path

LOCK_NAME = ".lock"


def is_training(run_dir: Path) -> bool | None:
    """Say whether another process holds RUN/.lock; None where the file system, or this system, does not tell.

    Only a shared lock is tried, for some microseconds, so that two who look do not see each other; nothing is made.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        handle = os.open(run_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False
