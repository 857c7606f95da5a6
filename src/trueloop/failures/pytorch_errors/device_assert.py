"""A check inside a GPU kernel failed, usually because a class number or an index is out of range.

The GPU runs operations later than the line that starts them, so the line in the traceback may not be the cause.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """State that the line in the traceback may be wrong, and how to find the right one."""
    return Explanation(
        meaning="A check on the GPU failed, usually because a target of a loss or an index of an embedding is negative "
        "or too large. The GPU runs operations later than the line that starts them, so the line above may be wrong.",
        fix="Run one batch on the CPU, where the error message contains the number, or set CUDA_LAUNCH_BLOCKING=1 to "
        "get the right line. Restart the process: it can no longer use the GPU.",
    )


ERROR = KnownError(
    title="A check inside a GPU kernel failed",
    exception_types=frozenset({"RuntimeError", "AcceleratorError"}),
    message_patterns=(r"CUDA error: device-side assert triggered",),
    explain=explain,
)
