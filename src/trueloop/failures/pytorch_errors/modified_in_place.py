"""A tensor that backward needs was changed in place after the forward had saved it.

``x += 1``, ``x[0] = 0``, ``x.mul_()`` and layers with ``inplace=True`` write over the values that the gradient is
computed from. An optimizer's step between a forward and its backward does so with the weights.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_WEIGHTS = ("", "T", "Transpose", "AsStrided", "Permute")  # a weight as it is, or turned by a linear layer
_TEXT = (
    r"one of the variables needed for gradient computation has been modified by an inplace operation: "
    r"\[[\w.]+ \[(?P<shape>[\d, ]*)\]\](?:, which is output \d+ of (?P<operation>[\w.]+),)? "
    r"is at version (?P<version>\d+); expected version (?P<expected>\d+)"
)
SHOWN = 3  # in-place lines; of more none is likely to be the one


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say what was changed, how often, and by what as far as that is certain."""
    shape = tuple(int(part) for part in match["shape"].split(",") if part.strip())
    version, expected = int(match["version"]), int(match["expected"])
    times = "once" if version - expected == 1 else f"{version - expected} times"
    operation = re.sub(r"Backward\d*$", "", match["operation"] or "")
    stepped = _stepped(raised, shape, version, times) if operation in _WEIGHTS else None
    if stepped is not None:
        return stepped
    whose = f"the result of {operation}" if operation else "no operation's result: a weight, or a batch"
    what = f"What was changed has the shape {shape} and is {whose}; it was changed in place {times} since."
    if raised.inplace_modules:
        what += f" These modules work in place: {', '.join(raised.inplace_modules[:SHOWN])}."
    few = raised.inplace_operations if len(raised.inplace_operations) <= SHOWN else ()
    fix = "Write x = x + y for x += y, leave inplace=True out, or change a clone: x = x.clone()."
    if operation in _WEIGHTS:
        fix += " An optimizer's step between the forward and the backward does so, too, with the weights."
    return Explanation(
        meaning=what,
        fix=fix,
        related=tuple((site, "changes something in place") for site in few if site != raised.location),
    )


def _stepped(raised: RaisedError, shape: tuple[int, ...], version: int, times: str) -> Explanation | None:
    """Find the parameter a step has changed: of this shape, or saved transposed, and changed as often as torch says."""
    past = raised.recent
    fitting = [each for each in raised.leaves if each.version == version and shape in (each.shape, each.shape[::-1])]
    if not fitting or not fitting[0].name or past.last_step is None:
        return None
    when = "came after the latest forward" if past.step_after_forward else "came later than the forward of this loss"
    return Explanation(
        meaning=f"The weight {fitting[0].display_name} was changed in place {times} between the forward and this backward: "
        f"an optimizer's step on line {past.last_step.line} {when}.",
        fix="Run every backward before any step, or run the forward again after the step.",
        related=((past.last_step, "this step came in between"),),
    )


ERROR = KnownError(
    title="A tensor that backward needs was changed in place",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(_TEXT,),
    explain=explain,
)
