"""The GPU, or the machine, has no memory left for another tensor.

The memory contains weights, gradients and optimizer state, whose sizes do not depend on the batch size; activations for
the backward pass, which grow with the batch size; and autograd graphs of past updates that are still stored.
"""

import re

from trueloop.core.formatting import format_size
from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_CPU = re.compile(r"you tried to allocate (\d+) bytes")
_REQUESTED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
_FREE = re.compile(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")
_RESERVED = re.compile(r"([\d.]+) (\w+) is reserved by PyTorch but unallocated")
_FIXES = (
    "Try in this order: a smaller batch size, with gradient accumulation over more batches; autocast with bfloat16; "
    "torch.utils.checkpoint for the largest blocks; torch.no_grad() around the evaluation."
)


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """State the sizes and the changes to try in order, of which a known leak is the first."""
    if (bytes_ := _CPU.search(error.message)) is not None:
        meaning = f"{format_size(int(bytes_[1]))} were requested in one piece, more than the machine has."
        return Explanation(
            meaning=meaning, fix="Check the sizes that this line is called with; read large data in parts."
        )
    requested, free = _REQUESTED.search(error.message), _FREE.search(error.message)
    meaning = f"{requested[1]} were requested" if requested else "More memory was requested than there is"
    if free:
        meaning += f", and {free[2]} of {free[1]} are free"
    is_first = error.recent.update == 0
    meaning += ". It was the first update: the model and a batch do not fit into the memory." if is_first else "."
    fix = _FIXES
    if "MEM001" in error.recent.found_codes:
        meaning += " Graphs of past updates are still in memory; the finding MEM001 below names the cause."
        fix = f"First fix MEM001. {_FIXES}"
    elif error.recent.update > 0:
        meaning += f" {error.recent.update} updates succeeded before: this batch is larger, or memory grows."
    if (reserved := _RESERVED.search(error.message)) and reserved[2] == "GiB" and float(reserved[1]) >= 1:
        fix += f" {reserved[1]} GiB are reserved but unused: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    return Explanation(meaning=meaning, fix=fix)


ERROR = KnownError(
    title="Out of memory",
    exception_types=frozenset({"OutOfMemoryError", "RuntimeError"}),
    message_patterns=(
        r"(?:CUDA|HIP|XPU|MPS backend) out of memory",
        r"\[enforce fail at alloc_cpu.*can't allocate memory",
    ),
    explain=explain,
)
