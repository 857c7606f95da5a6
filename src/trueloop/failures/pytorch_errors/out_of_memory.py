"""The accelerator, or the machine, has no memory left for one more tensor.

What takes it: weights, gradients and the optimizer's state, which do not depend on the batch; activations kept for the
backward, which grow with it; and graphs of past updates that something still refers to.
"""

from __future__ import annotations

import re

from trueloop.core.formatting import format_size
from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_CPU = re.compile(r"you tried to allocate (\d+) bytes")
_ASKED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
_FREE = re.compile(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")
_RESERVED = re.compile(r"([\d.]+) (\w+) is reserved by PyTorch but unallocated")
_IN_ORDER = (
    "In this order: a smaller batch, with as many more batches accumulated per update; autocast to bfloat16; "
    "torch.utils.checkpoint for the largest blocks; torch.no_grad() around the evaluation."
)


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say the numbers, and what to try in which order; a leak that was found comes first."""
    if (bytes_ := _CPU.search(raised.message)) is not None:
        what = f"{format_size(int(bytes_[1]))} were asked for in one piece, and the machine has no such room."
        return Explanation(meaning=what, fix="Look at the sizes this line is called with; read large data in parts.")
    asked, free = _ASKED.search(raised.message), _FREE.search(raised.message)
    what = f"{asked[1]} were asked for" if asked else "More was asked for than there is"
    if free:
        what += f", and {free[2]} of {free[1]} are free"
    first = "It was the first update: " if raised.recent.update == 0 else ""
    what += f". {first}The batch and the model do not fit together." if first else "."
    fix = _IN_ORDER
    if "MEM001" in raised.recent.found_codes:
        what += " Graphs of past updates are kept in memory: MEM001, below, says by what."
        fix = f"Stop keeping graphs first (MEM001). {_IN_ORDER}"
    elif raised.recent.update > 0:
        what += f" {raised.recent.update} updates went well before: a larger batch than those, or memory that grows."
    if (reserved := _RESERVED.search(raised.message)) and reserved[2] == "GiB" and float(reserved[1]) >= 1:
        fix += f" {reserved[1]} GiB are reserved but not in use: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    return Explanation(meaning=what, fix=fix)


ERROR = KnownError(
    title="Out of memory",
    exception_types=frozenset({"OutOfMemoryError", "RuntimeError"}),
    message_patterns=(
        r"(?:CUDA|HIP|XPU|MPS backend) out of memory",
        r"\[enforce fail at alloc_cpu.*can't allocate memory",
    ),
    explain=explain,
)
