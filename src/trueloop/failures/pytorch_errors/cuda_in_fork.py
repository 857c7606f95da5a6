"""A forked process uses the GPU after its parent process has used it.

CUDA does not work in a process that was forked from a process with CUDA. On Linux the workers of a ``DataLoader`` are
forked, so a dataset, a transform or a ``collate_fn`` must not use the GPU.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """State whether the process was a DataLoader worker."""
    process = "A DataLoader worker" if match.groupdict().get("worker") is not None else "A forked process"
    return Explanation(
        meaning=f"{process} used the GPU after its parent process had used it. CUDA does not work in such a process.",
        fix="Return CPU tensors from the dataset, its transforms and collate_fn, and move the batch to the GPU in the "
        'training loop. If a worker must use the GPU, pass multiprocessing_context="spawn".',
    )


ERROR = KnownError(
    title="CUDA was used in a forked process",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(
        r"Cannot re-initialize CUDA in forked subprocess",
        r"(?P<worker>Caught RuntimeError in DataLoader worker process \d+)\..*Cannot re-initialize CUDA in forked",
    ),
    explain=explain,
)
