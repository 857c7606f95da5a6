"""A parameter was changed in place while gradients are recorded.

Autograd cannot say what the gradient of a leaf is before and after it was overwritten.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the leaf."""
    leaf = next((each for each in raised.tensors if each.requires_grad and not each.grad_fn), None)
    called = leaf.display_name.capitalize() if leaf else "The tensor"
    return Explanation(
        meaning=f"{called} requires a gradient and was made by no operation (a parameter, or a tensor with "
        "requires_grad=True): it must not be overwritten while gradients are recorded.",
        fix="For an update or an initialisation by hand: with torch.no_grad(). For a value that belongs to the "
        "forward: y = x + 1 instead of x += 1.",
        tensor=leaf,
    )


ERROR = KnownError(
    title="A parameter was changed in place while gradients are recorded",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"a (?:view of a )?leaf Variable that requires grad is being used in an in-place operation",),
    explain=explain,
)
