"""Check whether a process is training in a run folder, without disturbing the process."""

import os
from pathlib import Path

LOCK_NAME = ".lock"


def is_training(run_dir: Path) -> bool | None:
    """Return whether another process holds RUN/.lock; None if file locks are not supported.

    The check takes a shared lock for a few microseconds, so that a concurrent check does not take it for a training
    process. It creates no file.
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
