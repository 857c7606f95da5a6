"""A class number or an index is larger than there are classes or rows.

``cross_entropy`` with C outputs takes the targets 0 to C-1; an ``Embedding`` of N rows the indices 0 to N-1. Labels
that count from 1, a vocabulary that has grown and a padding of -1 go beyond. On an accelerator the same mistake is a
device-side assertion.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say how many there are, and what was asked for."""
    if match.lastgroup == "target":
        return _target(raised, int(match["target"]))
    module = raised.running_module
    rows = module.int_attributes.get("num_embeddings") if module else None
    indices = next((each for each in raised.tensors if each.dtype in ("int64", "int32")), None)
    called = indices.display_name if indices else "the indices"
    where = f"`{module.path}` ({module.class_name})" if module and module.path else "The table"
    what = (
        f"{where} has {rows} rows, and {called} holds an index outside 0 to {rows - 1}."
        if rows
        else f"{called[0].upper()}{called[1:]} holds an index beyond the end of the table."
    )
    related = ((module.created_at, "the table is made here"),) if module and module.created_at else ()
    return Explanation(
        meaning=what,
        fix=f"Look at {called.strip('`')}.min() and .max(): num_embeddings is the largest index + 1, special tokens "
        "and padding included.",
        tensor=indices,
        related=related,
    )


def _target(raised: RaisedError, target: int) -> Explanation:
    scores = next(
        (each for each in raised.tensors if each.dtype not in ("int64", "uint8") and len(each.shape) > 1), None
    )
    targets = next((each for each in raised.tensors if each.dtype in ("int64", "uint8")), None)
    classes = scores.shape[1] if scores else None
    what = f"A target is {target}" + (
        f", and {scores.display_name} has {classes} classes: 0 to {classes - 1}." if scores and classes else "."
    )
    fix = "Make the last layer as wide as there are classes, or the labels count from 0."
    if target == classes:
        fix = f"If the labels count from 1, subtract 1; otherwise make the last layer {target + 1} wide."
    elif target < 0:
        fix = f"If {target} stands for padding, say so: ignore_index={target}."
    return Explanation(meaning=what, fix=fix, tensor=targets)


ERROR = KnownError(
    title="A class or an index beyond the end",
    exception_types=frozenset({"IndexError"}),
    message_patterns=(r"Target (?P<target>-?\d+) is out of bounds", r"index out of range in self"),
    explain=explain,
)
