"""A backward went through a part of the graph that an earlier one had used up.

``backward()`` frees what the graph has saved, as it goes. A second one from the same loss, from another loss of the
same forward, or from a loss that depends on a tensor of an earlier iteration (a hidden state, a GAN's samples) finds it
gone.
"""

from __future__ import annotations

import re

from trueloop.core.findings import SourceLocation
from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_SECOND = (
    "Call backward() once, on the sum of the losses; or, if this one is meant to go through the same graph again, pass "
    "retain_graph=True to the first."
)


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say what the two have in common, and name the first."""
    past, root = raised.recent, raised.backward_roots[0] if raised.backward_roots else None
    line = f" on line {past.last_backward.line}" if past.last_backward else ""
    called = root.display_name if root else "this loss"
    related: tuple[tuple[SourceLocation, str], ...] = ()
    if past.last_backward is not None and past.last_backward != raised.location:
        related = ((past.last_backward, "this backward freed it"),)
    if raised.freed_graph == "same":
        what = f"backward() has already run from {called}{line}, and that freed the graph."
        return Explanation(meaning=what, fix=_SECOND, tensor=root, related=related)
    if raised.freed_graph == "all" or (raised.freed_graph == "part" and not past.forward_after_backward):
        what = f"Part of {called}'s graph is also that of the loss whose backward ran{line}, which freed it."
        return Explanation(meaning=what, fix=_SECOND, tensor=root, related=related)
    if raised.freed_graph == "part":
        what = (
            f"The graph of {called} reaches back past the latest backward{line}, through {raised.freed_operation}: a tensor from "
            "before it still carries its graph, and that part is freed."
        )
    else:
        return Explanation(
            meaning="Part of the graph was freed by an earlier backward: of this loss, of another one that shares it, "
            "or of an iteration before, whose tensors still carry their graph.",
            fix=f"{_SECOND} Detach what is kept between iterations: hidden = hidden.detach().",
        )
    fix = (
        "Detach what is kept from before: hidden = hidden.detach() between iterations, D(fake.detach()) for a GAN's "
        "discriminator. If gradients are to flow there, call backward() once, on the sum of the losses."
    )
    return Explanation(meaning=what, fix=fix, related=related)


ERROR = KnownError(
    title="A second backward through a graph that is freed",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"Trying to backward through the graph a second time",),
    explain=explain,
)
