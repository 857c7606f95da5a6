"""A check inside a GPU kernel failed, usually because a class number or an index is out of range.

Kernels run later than the line that starts them, so the line in the traceback is only where the failure was noticed.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """State that the line in the traceback is too late, and how to find the right one."""
    return Explanation(
        meaning="A check inside a GPU kernel failed: nearly always a target of a loss, or an index of an embedding, "
        "that is negative or too large. The kernel runs later than the line that starts it, so the line above is only "
        "where the failure was noticed.",
        fix="Run one batch on the CPU, where the message names the number, or set CUDA_LAUNCH_BLOCKING=1 to get the "
        "right line. This process can no longer use the GPU: restart it.",
    )


ERROR = KnownError(
    title="A check inside a GPU kernel failed",
    exception_types=frozenset({"RuntimeError", "AcceleratorError"}),
    message_patterns=(r"CUDA error: device-side assert triggered",),
    explain=explain,
)
