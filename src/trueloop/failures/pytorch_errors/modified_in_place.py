"""A tensor that ``backward()`` needs was changed in place after the forward pass.

``x += 1``, ``x[0] = 0``, ``x.mul_()`` and layers with ``inplace=True`` overwrite values that are needed to compute the
gradient. An optimizer step between a forward pass and its backward pass overwrites the weights.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_WEIGHT_OPERATIONS = ("", "T", "Transpose", "AsStrided", "Permute")  # a weight, or its transpose in a linear layer
_MESSAGE = (
    r"one of the variables needed for gradient computation has been modified by an inplace operation: "
    r"\[[\w.]+ \[(?P<shape>[\d, ]*)\]\](?:, which is output \d+ of (?P<operation>[\w.]+),)? "
    r"is at version (?P<version>\d+); expected version (?P<expected>\d+)"
)
MAX_SHOWN = 3  # number of in-place lines; if there are more, each of them is an unlikely cause


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the changed tensor, the number of changes, and the cause if it is certain."""
    shape = tuple(int(part) for part in match["shape"].split(",") if part.strip())
    version, expected = int(match["version"]), int(match["expected"])
    times = "once" if version - expected == 1 else f"{version - expected} times"
    operation = re.sub(r"Backward\d*$", "", match["operation"] or "")
    explanation = _explain_optimizer_step(error, shape, version, times) if operation in _WEIGHT_OPERATIONS else None
    if explanation is not None:
        return explanation
    origin = f"the result of {operation}" if operation else "a weight or a batch, not the result of an operation"
    meaning = f"The changed tensor has the shape {shape} and is {origin}; later it was changed in place {times}."
    if error.inplace_modules:
        meaning += f" These modules work in place: {', '.join(error.inplace_modules[:MAX_SHOWN])}."
    locations = error.inplace_operations if len(error.inplace_operations) <= MAX_SHOWN else ()
    fix = "Write x = x + y instead of x += y, remove inplace=True, or change a clone: x = x.clone()."
    if operation in _WEIGHT_OPERATIONS:
        fix += " An optimizer step between the forward pass and the backward pass also changes the weights."
    return Explanation(
        meaning=meaning,
        fix=fix,
        related=tuple((line, "an in-place operation") for line in locations if line != error.location),
    )


def _explain_optimizer_step(error: RaisedError, shape: tuple[int, ...], version: int, times: str) -> Explanation | None:
    """Explain an optimizer step that changed a parameter of this shape (or its transpose) and version; else None."""
    recent = error.recent
    candidates = [each for each in error.leaves if each.version == version and shape in (each.shape, each.shape[::-1])]
    if not candidates or not candidates[0].name or recent.last_step is None:
        return None
    forward = "the latest forward pass" if recent.step_after_forward else "the forward pass of this loss"
    return Explanation(
        meaning=f"The weight {candidates[0].display_name} was changed in place {times} between the forward pass and "
        f"this backward pass: an optimizer step on line {recent.last_step.line} came after {forward}.",
        fix="Run all backward passes before any step, or run the forward pass again after the step.",
        related=((recent.last_step, "this step ran in between"),),
    )


ERROR = KnownError(
    title="A tensor that backward needs was changed in place",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(_MESSAGE,),
    explain=explain,
)
