"""A tensor could not be passed between processes: shared memory is full, or too many files are open.

On Linux, torch passes tensors as files in /dev/shm, each of them open in both processes until it is freed. A container
has 64 MB there, and many systems allow 1024 open files. ``trueloop doctor`` counts both against the workers of a run.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_FULL = (
    "Shared memory (/dev/shm) is full, through which loader workers pass their batches: a container has 64 MB of it.",
    "Give the container more (docker run --shm-size=8g, or --ipc=host), or take fewer workers or smaller batches.",
)
_OPEN = (
    "Too many files are open: each tensor on its way from a loader worker is one, and each that is kept stays one.",
    "ulimit -n 65536 at the start, or torch.multiprocessing.set_sharing_strategy('file_system'). Clone what is kept.",
)


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say which of the two it is."""
    many = re.search(r"Too many open files|ancdata", raised.message) is not None
    meaning, fix = _OPEN if many else _FULL
    return Explanation(meaning=meaning, fix=fix)


ERROR = KnownError(
    title="A tensor could not be passed between processes",
    exception_types=frozenset({"RuntimeError", "OSError"}),
    message_patterns=(
        r"unable to (?:write to file|open shared memory object|resize file|mmap \d+ bytes from file) <",
        r"unable to allocate shared memory ?\(shm\)",
        r"received \d+ items of ancdata",
        r"Too many open files\. Communication with the workers is no longer possible",
    ),
    explain=explain,
)
