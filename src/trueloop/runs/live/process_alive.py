"""Check whether a process is alive, even if another process has its id now."""

import os
from pathlib import Path
from typing import Final

_START_TICKS_FIELD: Final = 19  # index in /proc/PID/stat after the name: clock ticks from boot to process start


def process_start_ticks(pid: int) -> str:
    """Return the start time of a process in clock ticks, which distinguishes processes of the same id; "" = unknown."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return line.rpartition(")")[2].split()[_START_TICKS_FIELD]
    except (OSError, IndexError):
        return ""


def is_alive(pid: int, start_ticks: str) -> bool:
    """Return True if the process with this id and start time is running."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # the process belongs to another user
        return not start_ticks
    return not start_ticks or process_start_ticks(pid) == start_ticks


def memory_mib() -> float | None:
    """Return the resident memory of this process; None if the system does not report it. Cost: 10 us."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
