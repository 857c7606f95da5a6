"""A tensor could not be passed between processes: shared memory is full, or too many files are open.

On Linux, PyTorch passes tensors as files in /dev/shm, each of them open in both processes until it is freed. A
container has 64 MB there, and many systems allow 1024 open files. ``trueloop doctor`` checks both.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_SHARED_MEMORY_FULL = (
    "Shared memory (/dev/shm), through which loader workers pass their batches, is full: a container has 64 MB of it.",
    "Give the container more (docker run --shm-size=8g, or --ipc=host), or use fewer workers or smaller batches.",
)
_TOO_MANY_FILES = (
    "Too many files are open: each tensor from a loader worker is one, for as long as the tensor is kept.",
    "Run ulimit -n 65536 first, or torch.multiprocessing.set_sharing_strategy('file_system'). Clone tensors you keep.",
)


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """State which of the two limits was reached."""
    is_file_limit = re.search(r"Too many open files|ancdata", error.message) is not None
    meaning, fix = _TOO_MANY_FILES if is_file_limit else _SHARED_MEMORY_FULL
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
