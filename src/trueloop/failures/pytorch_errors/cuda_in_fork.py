"""CUDA was used in a forked process after its parent had used it.

The driver's state does not survive a fork. On Linux the workers of a ``DataLoader`` are forked, so that a dataset, a
transform or a ``collate_fn`` that touches the device fails there.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say whether it was a worker of a loader."""
    worker = match.groupdict().get("worker") is not None
    return Explanation(
        meaning=f"{'A worker of the DataLoader' if worker else 'A forked process'} touched the GPU after its parent "
        "had: what the parent knows of the driver does not survive the fork.",
        fix="Let the dataset, its transforms and collate_fn return tensors on the CPU, and move the batch in the "
        'training loop. Where a worker must use the device: multiprocessing_context="spawn".',
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
