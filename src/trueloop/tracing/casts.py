"""Finds autocast's casts of weights in a graph."""

from collections.abc import Iterable
from typing import Any, Final

from torch import Tensor

from trueloop.tracing.graph_leaves import sequence_number

MAX_NODES: Final = 96  # operations before a model's output that are searched
CAST: Final = "ToCopyBackward0"


def find_weight_cast(graphs: Iterable[Any]) -> tuple[Tensor, int] | None:
    """Return a leaf that was cast within a graph, and the cast's sequence number; None = none near the output.

    Args:
        graphs: the last operations of a model, where the search starts.

    Cost: 30 us.
    """
    queue = list(graphs)
    for node in queue:
        if len(queue) > MAX_NODES:
            break
        followers = [follower for follower, _ in node.next_functions if follower is not None]
        leaf = getattr(followers[0], "variable", None) if followers and node.name() == CAST else None
        number = sequence_number(node)
        if isinstance(leaf, Tensor) and number is not None:
            return leaf, number
        queue += followers
    return None
