"""``backward()`` was called on a tensor of several numbers.

A gradient is the slope of one number. A loss of torch's with ``reduction="none"``, or a model's output itself, has one
for each sample: the mean or the sum of them is what is to be made smaller.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say the shape, and what made it."""
    root = next((each for each in raised.backward_roots if each.shape not in ((), (1,))), None)
    if root is None:
        what = "A tensor of more than one number was given to backward()."
    else:
        what = (
            f"{root.display_name.capitalize()} has the shape {root.shape_text}, and backward() starts from one number."
        )
    reducing = root is not None and root.created_by.endswith(("_loss", "cross_entropy", "criterion"))
    fix = "Make one number of it first: call .mean() on it" + (
        ', or leave reduction="none" out of the loss.' if reducing else " (or .sum()), and backward() on that."
    )
    return Explanation(meaning=what, fix=fix, tensor=root)


ERROR = KnownError(
    title="backward() was called on more than one number",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"grad can be implicitly created only for scalar outputs",),
    explain=explain,
)
