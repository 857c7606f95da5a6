"""Reads a graph: its leaves, its operations, and the part that an earlier backward pass freed."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from torch import Tensor

MAX_NODES: Final = 20_000  # searched operations; they take 50 ms
MAX_TERMS: Final = 48  # searched operations of a sum of losses
_SUMS: Final = frozenset(("AddBackward", "RsubBackward", "StackBackward", "SubBackward"))
_SCALINGS: Final = frozenset(("DivBackward", "MeanBackward", "MulBackward", "NegBackward", "SumBackward"))


def sequence_number(node: Any) -> int | None:
    """Return the sequence number of an operation: higher than those of all earlier operations in its thread.

    Cost: 0.1 us.
    """
    number = getattr(node, "_sequence_nr", None)
    return None if number is None else int(number())


def graph_leaves(roots: Iterable[Tensor]) -> list[Tensor]:
    """Return the leaves that a backward pass from these roots would reach."""
    found = [getattr(node, "variable", None) for node in _nodes(roots)]
    return [each for each in found if isinstance(each, Tensor)]


def contains_operation(roots: Iterable[Tensor], order: int) -> bool:
    """Return True if the graph of these roots contains the operation with a sequence number."""
    return any(sequence_number(node) == order for node in _nodes(roots))


def graph_users(roots: Iterable[Any], limit: int) -> dict[Any, list[Any]]:
    """Return the nodes below some nodes, nearest first, each with the nodes that use its result.

    Args:
        roots: the last nodes of a graph.
        limit: number of nodes after which the search ends.

    Cost: 1 us for each node.
    """
    found: dict[Any, list[Any]] = {each: [] for each in roots if each is not None}
    queue = list(found)
    for node in queue:
        for below, _ in node.next_functions:
            if below is None:
                continue
            if below not in found:
                found[below] = []
                queue.append(below)
            found[below].append(node)
        if len(found) >= limit:
            break
    return found


def adds_constant(root: Tensor) -> bool:
    """Return True if a scalar is a sum with a term that has no graph. Cost: 0.5 us for each term."""
    pending: list[Any] = [root.grad_fn]
    for _ in range(MAX_TERMS):
        node = pending.pop() if pending else None
        if node is None:
            return False
        name = node.name().rstrip("01")
        children = [child for child, _ in node.next_functions]
        if name in _SUMS and None in children:
            return True
        if name in _SUMS or name in _SCALINGS:
            pending += [each for each in children if each is not None and _is_scalar(each)]
    return False


def _is_scalar(node: Any) -> bool:
    results = getattr(node, "_input_metadata", None)
    return bool(results) and (not tuple(results[0].shape) or node.name() == "StackBackward0")


def find_freed_part(roots: Iterable[Tensor], order: int | None) -> tuple[str, str]:
    """Return the part of the graph of these roots that the latest completed backward pass has freed.

    Args:
        roots: roots of the failed backward pass.
        order: sequence number of the root of the completed backward pass; None = unknown.

    Returns:
        "same" (both had the same root), "all" (the completed one may have freed the whole graph), "part" with the last
        operation of the freed part, or "".
    """
    roots = [root for root in roots if root.grad_fn is not None]
    numbers = [number for root in roots if (number := sequence_number(root.grad_fn)) is not None]
    if order is None or not numbers:
        return "", ""
    if max(numbers) <= order:
        return ("same" if order in numbers else "all"), ""
    for node in _nodes(roots):
        own = sequence_number(node)
        for child, _ in node.next_functions:
            if child is None or hasattr(child, "variable"):
                continue
            below = sequence_number(child)
            if own is not None and below is not None and below <= order < own:
                return "part", str(child.name())
    return "", ""


def _nodes(roots: Iterable[Tensor]) -> Iterator[Any]:
    pending: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen: set[Any] = set()
    while pending and len(seen) < MAX_NODES:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        pending += [child for child, _ in node.next_functions if child is not None]
