"""A check within a kernel failed on the accelerator: mostly a class number or an index out of range.

Kernels run later than the line that starts them, so that the traceback's line is only where it was noticed.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say that the line is a later one, and how the right one is found."""
    return Explanation(
        meaning="A check within a kernel failed: nearly always a target of a loss, or an index of an embedding, that "
        "is negative or too large. The kernel runs later than the line that starts it, so the line above is only where "
        "it was noticed.",
        fix="Run one batch on the CPU, where the message names the number, or run with CUDA_LAUNCH_BLOCKING=1 for the "
        "line. The process cannot use the device any more and has to be started anew.",
    )


ERROR = KnownError(
    title="A check failed on the accelerator",
    exception_types=frozenset({"RuntimeError", "AcceleratorError"}),
    message_patterns=(r"CUDA error: device-side assert triggered",),
    explain=explain,
)
