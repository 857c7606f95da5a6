"""A tensor that backward needs was changed in place after the forward had saved it.

``x += 1``, ``x[0] = 0``, ``x.mul_()`` and layers with ``inplace=True`` write over the values that the gradient is
computed from. An optimizer's step between a forward and its backward does so with the weights.
"""

from __future__ import annotations

import re

from trueloop.ground.raised import Explanation, KnownError, Raised, TensorSeen

SHOWN = 3  # in-place lines; of more none is likely to be the one


def explain(raised: Raised, match: re.Match[str]) -> Explanation:
    """Say what was changed, how often, and by what as far as that is certain."""
    shape = tuple(int(part) for part in match["shape"].split(",") if part.strip())
    version, expected = int(match["version"]), int(match["expected"])
    times = "once" if version - expected == 1 else f"{version - expected} times"
    weight = _weight(raised, shape, version)
    if weight is not None:
        return _stepped(raised, weight, times)
    operation = f"the result of {match['operation']}" if match["operation"] else "a leaf, no operation's result"
    size = "x".join(map(str, shape)) or "a single number"
    what = f"The tensor of shape {size} that was changed is {operation}; it was changed in place {times} since."
    if raised.inplace:
        what += f" These modules work in place: {', '.join(raised.inplace[:SHOWN])}."
    few = raised.changes if len(raised.changes) <= SHOWN else ()
    return Explanation(
        meaning=what,
        fix="Write x = x + y for x += y, leave inplace=True out, or change a clone: x = x.clone().",
        related=tuple((site, "changes something in place") for site in few if site != raised.site),
    )


def _weight(raised: Raised, shape: tuple[int, ...], version: int) -> TensorSeen | None:
    """Find the one parameter it can be: of this shape, or saved transposed, and changed as often as torch says."""
    fitting = [each for each in raised.leaves if each.version == version and shape in (each.shape, each.shape[::-1])]
    return fitting[0] if fitting and fitting[0].name else None


def _stepped(raised: Raised, weight: TensorSeen, times: str) -> Explanation:
    past = raised.past
    what = f"The weight {weight.called} was changed in place {times} between the forward and this backward"
    if past.step is None or not past.stepped:
        return Explanation(
            meaning=f"{what}.", fix="Change weights after the backward only, and run the forward again after a change."
        )
    return Explanation(
        meaning=f"{what}: an optimizer's step on line {past.step.line} came after the latest forward.",
        fix="Run every backward before any step, or run the forward again after the step.",
        related=((past.step, "this step came in between"),),
    )


ERROR = KnownError(
    title="A tensor that backward needs was changed in place",
    types=frozenset({"RuntimeError"}),
    texts=(
        r"one of the variables needed for gradient computation has been modified by an inplace operation: "
        r"\[[\w.]+ \[(?P<shape>[\d, ]*)\]\](?:, which is output \d+ of (?P<operation>[\w.]+),)? "
        r"is at version (?P<version>\d+); expected version (?P<expected>\d+)",
    ),
    explain=explain,
)
