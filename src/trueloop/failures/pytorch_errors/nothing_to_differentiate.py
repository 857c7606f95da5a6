"""``backward()`` was called on a tensor that no parameter leads to.

The graph is lost where gradients are switched off (``torch.no_grad()``, ``inference_mode``), where every parameter is
frozen, or where the value was taken out of it: ``.detach()``, ``.item()``, ``torch.tensor(...)``, an argmax, numpy.
"""

from __future__ import annotations

import re

from trueloop.core.findings import SourceLocation
from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError, TensorDescription

_CUTS = {
    "detach": "`.detach()` takes it out of the graph",
    "data": "`.data` takes it out of the graph",
    "item": "`.item()` makes a plain number of it",
    "numpy": "`.numpy()` leaves torch",
    "tensor": "`torch.tensor(...)` copies values and drops their graph",
    "as_tensor": "`torch.as_tensor(...)` of plain numbers has no graph",
    "from_numpy": "`torch.from_numpy(...)` has no graph",
    "argmax": "`argmax` has no gradient",
    "round": "its gradient is lost in `round`",
    "eq": "a comparison has no gradient",
}
_LOOK = (
    "Look for .detach(), .item(), torch.tensor(...), argmax or torch.no_grad() between the model's output and the "
    "loss; and check that the parameters require gradients."
)


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say which of these it is, as far as something was seen."""
    index = int(match["index"])
    root = raised.backward_roots[index] if index < len(raised.backward_roots) else None
    what = (
        f"{root.display_name.capitalize() if root else 'The tensor'} leads back to no parameter that wants a gradient"
    )
    why, fix = _why(raised, root)
    return Explanation(meaning=f"{what}{why}.", fix=fix, tensor=root, related=_related(raised))


def _why(raised: RaisedError, root: TensorDescription | None) -> tuple[str, str]:
    past = raised.recent
    if past.grad_mode is False:
        which = "torch.inference_mode()" if past.inference_mode else "torch.no_grad()"
        return (
            f": the model's latest forward ran with gradients switched off ({which}, or set_grad_enabled(False))",
            "Take the training forward out of it, and leave it around the evaluation only.",
        )
    if root is not None and root.created_by in _CUTS:
        return (
            f": {_CUTS[root.created_by]}",
            "Compute the loss from the tensors themselves, and take numbers out later.",
        )
    if past.frozen_model:
        return (
            f": no parameter of {past.frozen_model} has requires_grad set",
            "Set requires_grad on what is to be trained, or check which layers the freezing was meant for.",
        )
    return "", _LOOK


def _related(raised: RaisedError) -> tuple[tuple[SourceLocation, str], ...]:
    past = raised.recent
    return (
        ((past.last_forward, "this forward ran without gradients"),)
        if past.last_forward and past.grad_mode is False
        else ()
    )


ERROR = KnownError(
    title="The loss has no graph to go back through",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"element (?P<index>\d+) of tensors does not require grad and does not have a grad_fn",),
    explain=explain,
)
