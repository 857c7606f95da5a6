"""A class number or an index is out of range.

``cross_entropy`` with C outputs accepts the targets 0 to C-1, and an ``Embedding`` of N rows the indices 0 to N-1.
Common causes are labels that count from 1, a larger vocabulary, and padding with -1. On a GPU the same mistake is
reported as a device-side assertion.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """State the number of classes or rows, and the value that is out of range."""
    if match.lastgroup == "target":
        return _explain_target(error, int(match["target"]))
    module = error.running_module
    rows = module.int_attributes.get("num_embeddings") if module else None
    indices = next((each for each in error.tensors if each.dtype in ("int64", "int32")), None)
    name = indices.display_name if indices else "the indices"
    table = f"`{module.path}` ({module.class_name})" if module and module.path else "The table"
    meaning = (
        f"{table} has {rows} rows, but {name} contains an index outside 0 to {rows - 1}."
        if rows
        else f"{name[0].upper()}{name[1:]} contains an index that is too large for the table."
    )
    related = ((module.created_at, "the table is created here"),) if module and module.created_at else ()
    return Explanation(
        meaning=meaning,
        fix=f"Check {name.strip('`')}.min() and .max(): num_embeddings must be the largest index + 1, including "
        "special tokens and padding.",
        tensor=indices,
        related=related,
    )


def _explain_target(error: RaisedError, target: int) -> Explanation:
    scores = next(
        (each for each in error.tensors if each.dtype not in ("int64", "uint8") and len(each.shape) > 1), None
    )
    targets = next((each for each in error.tensors if each.dtype in ("int64", "uint8")), None)
    classes = scores.shape[1] if scores else None
    meaning = f"A target is {target}" + (
        f", but {scores.display_name} has {classes} classes: 0 to {classes - 1}." if scores and classes else "."
    )
    fix = "The last layer needs one output per class, and labels must count from 0."
    if target == classes:
        fix = f"If the labels count from 1, subtract 1; otherwise give the last layer {target + 1} outputs."
    elif target < 0:
        fix = f"If {target} marks padding, pass ignore_index={target} to the loss."
    return Explanation(meaning=meaning, fix=fix, tensor=targets)


ERROR = KnownError(
    title="A target or an index is out of range",
    exception_types=frozenset({"IndexError"}),
    message_patterns=(r"Target (?P<target>-?\d+) is out of bounds", r"index out of range in self"),
    explain=explain,
)
