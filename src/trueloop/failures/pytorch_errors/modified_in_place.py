"""A tensor that backward needs was changed in place after the forward had saved it.

``x += 1``, ``x[0] = 0``, ``x.mul_()`` and layers with ``inplace=True`` overwrite values that the gradient is computed
from. An optimizer step between a forward and its backward overwrites the weights.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_WEIGHT_OPERATIONS = ("", "T", "Transpose", "AsStrided", "Permute")  # a weight, or its transpose in a linear layer
_MESSAGE = (
    r"one of the variables needed for gradient computation has been modified by an inplace operation: "
    r"\[[\w.]+ \[(?P<shape>[\d, ]*)\]\](?:, which is output \d+ of (?P<operation>[\w.]+),)? "
    r"is at version (?P<version>\d+); expected version (?P<expected>\d+)"
)
MAX_SHOWN = 3  # in-place lines; with more of them each is an unlikely cause


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the changed tensor, how often it was changed, and the cause if it is certain."""
    shape = tuple(int(part) for part in match["shape"].split(",") if part.strip())
    version, expected = int(match["version"]), int(match["expected"])
    times = "once" if version - expected == 1 else f"{version - expected} times"
    operation = re.sub(r"Backward\d*$", "", match["operation"] or "")
    explanation = _explain_optimizer_step(error, shape, version, times) if operation in _WEIGHT_OPERATIONS else None
    if explanation is not None:
        return explanation
    origin = f"the result of {operation}" if operation else "not the result of an operation: a weight, or a batch"
    meaning = f"The changed tensor has the shape {shape} and is {origin}; it was changed in place {times} after that."
    if error.inplace_modules:
        meaning += f" These modules work in place: {', '.join(error.inplace_modules[:MAX_SHOWN])}."
    locations = error.inplace_operations if len(error.inplace_operations) <= MAX_SHOWN else ()
    fix = "Write x = x + y instead of x += y, remove inplace=True, or change a clone: x = x.clone()."
    if operation in _WEIGHT_OPERATIONS:
        fix += " An optimizer step between the forward and the backward also changes the weights."
    return Explanation(
        meaning=meaning,
        fix=fix,
        related=tuple((site, "an in-place operation") for site in locations if site != error.location),
    )


def _explain_optimizer_step(error: RaisedError, shape: tuple[int, ...], version: int, times: str) -> Explanation | None:
    """Find the parameter that a step changed: of this shape or its transpose, and of the version in the message."""
    recent = error.recent
    candidates = [each for each in error.leaves if each.version == version and shape in (each.shape, each.shape[::-1])]
    if not candidates or not candidates[0].name or recent.last_step is None:
        return None
    when = "came after the latest forward" if recent.step_after_forward else "came later than the forward of this loss"
    return Explanation(
        meaning=f"The weight {candidates[0].display_name} was changed in place {times} between the forward and this "
        f"backward: an optimizer step on line {recent.last_step.line} {when}.",
        fix="Run every backward before any step, or run the forward again after the step.",
        related=((recent.last_step, "this step ran in between"),),
    )


ERROR = KnownError(
    title="A tensor that backward needs was changed in place",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(_MESSAGE,),
    explain=explain,
)
