"""A tensor could not be passed between processes: shared memory is full, or too many files are open.

On Linux, PyTorch passes each tensor as a file in /dev/shm, which is open in both processes until the tensor is freed.
In a container, /dev/shm has 64 MB by default, and many systems allow 1024 open files. ``trueloop doctor`` checks both.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_SHARED_MEMORY_FULL = (
    "Loader workers pass batches through shared memory (/dev/shm), which is full: a container has 64 MB by default.",
    "Give the container more (docker run --shm-size=8g, or --ipc=host), or use fewer workers or smaller batches.",
)
_TOO_MANY_FILES = (
    "Too many files are open: each tensor from a loader worker is an open file until the tensor is freed.",
    "Run ulimit -n 65536 first, or torch.multiprocessing.set_sharing_strategy('file_system'). Clone stored tensors.",
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
