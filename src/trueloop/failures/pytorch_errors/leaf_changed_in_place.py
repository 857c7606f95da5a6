"""A parameter was changed in place while gradients are recorded.

A parameter, or another tensor with ``requires_grad=True``, must not be overwritten while autograd records operations,
because autograd could not compute its gradient. Such a tensor is called a leaf tensor.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the leaf tensor."""
    leaf = next((each for each in error.tensors if each.requires_grad and not each.grad_fn), None)
    name = leaf.display_name.capitalize() if leaf else "The tensor"
    return Explanation(
        meaning=f"{name} is a leaf tensor that requires a gradient (a parameter, or a tensor with "
        "requires_grad=True): it must not be changed in place while gradients are recorded.",
        fix="Put a manual update or initialisation under `with torch.no_grad():`. In a forward pass, write "
        "y = x + 1 instead of x += 1.",
        tensor=leaf,
    )


ERROR = KnownError(
    title="A parameter was changed in place",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"a (?:view of a )?leaf Variable that requires grad is being used in an in-place operation",),
    explain=explain,
)
