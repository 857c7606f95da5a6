"""``backward()`` needs a graph that an earlier ``backward()`` has freed.

The autograd graph stores the tensors that ``backward()`` needs, and ``backward()`` frees them. A second call then fails
for the same loss, for another loss of the same forward pass, and for a loss that depends on a tensor of an earlier
iteration, such as a hidden state or the generated samples of a GAN.
"""

import re

from trueloop.core.findings import SourceLocation
from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_CALL_ONCE = (
    "Call backward() once, on the sum of the losses. If you need a second backward() through the same graph, pass "
    "retain_graph=True to the first call."
)


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the line of the earlier ``backward()`` and the shared part of the graph."""
    recent, root = error.recent, error.backward_roots[0] if error.backward_roots else None
    line = f" on line {recent.last_backward.line}" if recent.last_backward else ""
    name = root.display_name if root else "this loss"
    related: tuple[tuple[SourceLocation, str], ...] = ()
    if recent.last_backward is not None and recent.last_backward != error.location:
        related = ((recent.last_backward, "this `backward()` freed the graph"),)
    if error.freed_graph == "same":
        meaning = f"backward() was already called on {name}{line}, which freed the graph."
        return Explanation(meaning=meaning, fix=_CALL_ONCE, tensor=root, related=related)
    if error.freed_graph == "all" or (error.freed_graph == "part" and not recent.forward_after_backward):
        shared = name[:1].upper() + name[1:]
        meaning = f"{shared} shares a part of its graph with another loss, and backward(){line} freed this part."
        return Explanation(meaning=meaning, fix=_CALL_ONCE, tensor=root, related=related)
    if error.freed_graph == "part":
        meaning = (
            f"The graph of {name} contains an operation ({error.freed_operation}) from before the latest "
            f"backward(){line}, which freed this part: a tensor from then was used again without detach()."
        )
    else:
        return Explanation(
            meaning="An earlier backward() freed a part of the graph: a call for this loss, for another loss with the "
            "same graph, or in an earlier iteration whose tensors are used again.",
            fix=f"{_CALL_ONCE} Detach tensors that you use again in the next iteration: hidden = hidden.detach().",
        )
    fix = (
        "Detach tensors from earlier iterations: hidden = hidden.detach(), or D(fake.detach()) for the discriminator "
        "of a GAN. If they need gradients, call backward() once, on the sum of the losses."
    )
    return Explanation(meaning=meaning, fix=fix, related=related)


ERROR = KnownError(
    title="Second backward through a freed graph",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"Trying to backward through the graph a second time",),
    explain=explain,
)
