"""``backward()`` was called on a tensor with more than one element.

A gradient shows how one number, the loss, changes with each weight. A loss with ``reduction="none"``, or the output of
a model, has one number per sample: reduce it with ``.mean()`` or ``.sum()`` first.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the shape of the tensor and, for a loss, the argument to remove."""
    root = next((each for each in error.backward_roots if each.shape not in ((), (1,))), None)
    if root is None:
        meaning = "backward() was called on a tensor with more than one element."
    else:
        meaning = (
            f"{root.display_name.capitalize()} has the shape {root.shape_text}, but backward() needs a single number."
        )
    is_loss = root is not None and root.created_by.endswith(("_loss", "cross_entropy", "criterion"))
    fix = (
        'Reduce it to one number first: call .mean() on it, or remove reduction="none" from the loss.'
        if is_loss
        else "Reduce it to one number first: call .mean() (or .sum()) on it, and backward() on the result."
    )
    return Explanation(meaning=meaning, fix=fix, tensor=root)


ERROR = KnownError(
    title="backward() needs a single number",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"grad can be implicitly created only for scalar outputs",),
    explain=explain,
)
