"""``backward()`` ran through a graph that an earlier ``backward()`` had freed.

``backward()`` frees the tensors that the graph has saved. A second call fails on the same loss, on another loss of the
same forward, and on a loss that depends on a tensor of an earlier iteration (a hidden state, the samples of a GAN).
"""

import re

from trueloop.core.findings import SourceLocation
from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_CALL_ONCE = (
    "Call backward() once, on the sum of the losses. If the second pass through the same graph is intended, pass "
    "retain_graph=True to the first call."
)


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the earlier backward, and what its graph has in common with this one."""
    recent, root = error.recent, error.backward_roots[0] if error.backward_roots else None
    line = f" on line {recent.last_backward.line}" if recent.last_backward else ""
    name = root.display_name if root else "this loss"
    related: tuple[tuple[SourceLocation, str], ...] = ()
    if recent.last_backward is not None and recent.last_backward != error.location:
        related = ((recent.last_backward, "this backward freed the graph"),)
    if error.freed_graph == "same":
        meaning = f"backward() already ran from {name}{line}, which freed the graph."
        return Explanation(meaning=meaning, fix=_CALL_ONCE, tensor=root, related=related)
    if error.freed_graph == "all" or (error.freed_graph == "part" and not recent.forward_after_backward):
        shared = name[:1].upper() + name[1:]
        meaning = f"{shared} shares part of its graph with the loss whose backward ran{line}, which freed that part."
        return Explanation(meaning=meaning, fix=_CALL_ONCE, tensor=root, related=related)
    if error.freed_graph == "part":
        meaning = (
            f"The graph of {name} reaches back past the latest backward{line}, through {error.freed_operation}: a "
            "tensor from before still carries its graph, and that part was freed."
        )
    else:
        return Explanation(
            meaning="Part of the graph was freed by an earlier backward: of this loss, of another loss that shares the "
            "graph, or of an earlier iteration whose tensors still carry their graph.",
            fix=f"{_CALL_ONCE} Detach what you keep between iterations: hidden = hidden.detach().",
        )
    fix = (
        "Detach tensors from earlier iterations: hidden = hidden.detach(), or D(fake.detach()) for the discriminator "
        "of a GAN. If gradients should flow there, call backward() once, on the sum of the losses."
    )
    return Explanation(meaning=meaning, fix=fix, related=related)


ERROR = KnownError(
    title="Second backward through a freed graph",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"Trying to backward through the graph a second time",),
    explain=explain,
)
