"""A process of the DataLoader ended without a word of its own.

It was killed by the system, which had no memory left, or ran out of shared memory (the 64 MB of /dev/shm in a
container), or crashed in a library.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_KILLED = re.compile(r"is killed by signal: ([\w ]+)")
_MEMORY = (
    "It was killed, mostly by the system because no memory was left; each holds a copy of what its dataset keeps.",
    "Fewer workers, a smaller prefetch_factor; keep arrays or memory-mapped files in the dataset, not lists.",
)
_SHARED = (
    "Workers pass batches through shared memory, and none was left: a container has 64 MB unless it is told otherwise.",
    "Give the container more (docker run --shm-size=8g, or --ipc=host), or take fewer workers or smaller batches.",
)
_CRASH = (
    "It crashed in code that is not Python: mostly a library that does not survive a fork, or a broken file.",
    'Run with num_workers=0 and python -X faulthandler to see where; try multiprocessing_context="spawn".',
)
_SIGNALS = {"Killed": _MEMORY, "Bus error": _SHARED, "Segmentation fault": _CRASH}
_OTHER = (
    "It ended by itself, without an exception that could be passed on.",
    'Run with num_workers=0 to see its own error. With "spawn", the script needs if __name__ == "__main__":.',
)


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation | None:
    """Say what the signal means."""
    if not any(file.startswith("utils/data/") for file in raised.pytorch_files):
        return None
    signal = next((found[1] for cause in raised.causes if (found := _KILLED.search(cause))), "")
    why, fix = next((words for name, words in _SIGNALS.items() if signal.startswith(name)), _OTHER)
    return Explanation(meaning=f"A worker of the DataLoader died. {why}", fix=fix)


ERROR = KnownError(
    title="A worker of the DataLoader died",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(
        r"DataLoader worker \(pid \d+\) is killed by signal: ",
        r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
    ),
    explain=explain,
)
