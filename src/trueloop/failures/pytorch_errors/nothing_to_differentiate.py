"""``backward()`` was called on a tensor that does not depend on any parameter.

Possible causes are disabled gradients (``torch.no_grad()``, ``inference_mode``), frozen parameters, or a call that cuts
the loss off from the model: ``.detach()``, ``.item()``, ``torch.tensor(...)``, an argmax, NumPy.
"""

import re

from trueloop.core.findings import SourceLocation
from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError, TensorDescription

_DETACHING_CALLS = {
    "detach": "`.detach()` removes it from the graph",
    "data": "`.data` removes it from the graph",
    "item": "`.item()` returns a plain number",
    "numpy": "`.numpy()` returns an array without a graph",
    "tensor": "`torch.tensor(...)` copies values without their graph",
    "as_tensor": "`torch.as_tensor(...)` of plain numbers has no graph",
    "from_numpy": "`torch.from_numpy(...)` has no graph",
    "argmax": "`argmax` has no gradient",
    "round": "the gradient of `round` is zero",
    "eq": "a comparison has no gradient",
}
_GENERAL_FIX = (
    "Check for .detach(), .item(), torch.tensor(...), argmax or torch.no_grad() between the output of the model and "
    "the loss, and that the parameters require gradients."
)


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the reason, if it is known."""
    index = int(match["index"])
    root = error.backward_roots[index] if index < len(error.backward_roots) else None
    subject = root.display_name.capitalize() if root else "The tensor"
    reason, fix = _reason_and_fix(error, root)
    meaning = f"{subject} does not depend on any parameter that requires a gradient{reason}."
    return Explanation(meaning=meaning, fix=fix, tensor=root, related=_related(error))


def _reason_and_fix(error: RaisedError, root: TensorDescription | None) -> tuple[str, str]:
    recent = error.recent
    if recent.grad_mode is False:
        context = "torch.inference_mode()" if recent.inference_mode else "torch.no_grad()"
        return (
            f": gradients were disabled in the latest forward pass ({context}, or set_grad_enabled(False))",
            "Disable gradients for evaluation only, not for the forward pass of training.",
        )
    if root is not None and root.created_by in _DETACHING_CALLS:
        return (
            f": {_DETACHING_CALLS[root.created_by]}",
            "Compute the loss from the tensors themselves, and convert to numbers afterwards.",
        )
    if recent.frozen_model:
        return (
            f": all parameters of {recent.frozen_model} have requires_grad=False",
            "Set requires_grad=True for the parameters to train, or check which layers you wanted to freeze.",
        )
    return "", _GENERAL_FIX


def _related(error: RaisedError) -> tuple[tuple[SourceLocation, str], ...]:
    recent = error.recent
    return (
        ((recent.last_forward, "this forward pass ran without gradients"),)
        if recent.last_forward and recent.grad_mode is False
        else ()
    )


ERROR = KnownError(
    title="The loss does not depend on any trainable parameter",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"element (?P<index>\d+) of tensors does not require grad and does not have a grad_fn",),
    explain=explain,
)
