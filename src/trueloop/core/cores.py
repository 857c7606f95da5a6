"""Count the processor cores that this process may use."""

import os


def available_cores() -> int:
    """Return the number of cores that the scheduler may run this process on, at least 1; quotas are not considered."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
