"""Casts of weights that autocast makes, as they stand in a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from torch import Tensor

from trueloop.tracing.graph_leaves import sequence_number

NEAR: Final = 96  # operations behind a model's output among which one is looked for
CAST: Final = "ToCopyBackward0"


def find_weight_cast(graphs: Iterable[Any]) -> tuple[Tensor, int] | None:
    """Return a leaf that a graph reaches by a change of its type, and the number of that change; None = not near.

    Args:
        graphs: operations to begin at: the last ones of a model.

    Cost: 30 us.
    """
    queue = list(graphs)
    for node in queue:
        if len(queue) > NEAR:
            break
        followers = [follower for follower, _ in node.next_functions if follower is not None]
        leaf = getattr(followers[0], "variable", None) if followers and node.name() == CAST else None
        number = sequence_number(node)
        if isinstance(leaf, Tensor) and number is not None:
            return leaf, number
        queue += followers
    return None
