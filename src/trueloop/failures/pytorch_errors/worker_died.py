"""A DataLoader worker died without raising an exception.

Either the system killed it because no memory was left, or the shared memory was full (/dev/shm has 64 MB in a
container), or a library crashed.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_KILLED = re.compile(r"is killed by signal: ([\w ]+)")
_MEMORY = (
    "It was killed, usually because no memory was left; each worker has a copy of the dataset object.",
    "Use fewer workers or a smaller prefetch_factor; store arrays or memory-mapped files in the dataset, not lists.",
)
_SHARED = (
    "Workers pass batches through shared memory, and none was left: a container has 64 MB of it by default.",
    "Give the container more (docker run --shm-size=8g, or --ipc=host), or use fewer workers or smaller batches.",
)
_CRASH = (
    "It crashed in native code: usually in a library that does not work after a fork, or because of a broken file.",
    'Run with num_workers=0 and python -X faulthandler to find the line; try multiprocessing_context="spawn".',
)
_SIGNALS = {"Killed": _MEMORY, "Bus error": _SHARED, "Segmentation fault": _CRASH}
_OTHER = (
    "It exited without an exception.",
    'Run with num_workers=0 to see the original error. With "spawn", the script needs if __name__ == "__main__":.',
)


def explain(error: RaisedError, match: re.Match[str]) -> Explanation | None:
    """Explain the signal that ended the worker."""
    if not any(file.startswith("utils/data/") for file in error.pytorch_files):
        return None
    signal = next((killed[1] for cause in error.causes if (killed := _KILLED.search(cause))), "")
    reason, fix = next((texts for name, texts in _SIGNALS.items() if signal.startswith(name)), _OTHER)
    return Explanation(meaning=f"A DataLoader worker died. {reason}", fix=fix)


ERROR = KnownError(
    title="A DataLoader worker died",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(
        r"DataLoader worker \(pid \d+\) is killed by signal: ",
        r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
    ),
    explain=explain,
)
