"""Traverses the autograd graph of a tensor: nodes, edges, saved tensors, and a layout for drawing.

Works on any objects with ``next_functions``, such as torch's nodes; nothing is run, and no hooks are called.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

State = Literal["kept", "freed", "hooked"]


class Walk(NamedTuple):
    """Nodes breadth first from the root."""

    nodes: list[Any]
    edges: list[tuple[int, int]]
    """(from, to) as indices into ``nodes``, in the direction of backward."""
    offsets: list[float]
    """Row offset of each node from its first parent: the inputs of an operation are drawn in order, a layer's bias
    above, its input ahead, its weight below."""
    cut: bool
    """True where the graph has more nodes than requested."""


def walk(root: Any, limit: int) -> Walk:
    """Return the nearest nodes of a graph, up to a limit.

    Args:
        root: a tensor's ``grad_fn``.
        limit: largest number of nodes.
    """
    nodes, numbers, offsets, cut = [root], {root: 0}, [0.0], False
    edges: list[tuple[int, int]] = []
    for place, node in enumerate(nodes):  # the list grows during the loop
        given = [child for child, _ in node.next_functions if child is not None]
        for slot, child in enumerate(given):
            if child not in numbers and len(nodes) == limit:
                cut = True
                continue
            if child not in numbers:
                numbers[child] = len(nodes)
                nodes.append(child)
                offsets.append(slot - (len(given) - 1) / 2)
            edges.append((place, numbers[child]))
    return Walk(nodes, edges, offsets, cut)


def saved(node: Any) -> Iterator[tuple[str, Any, State]]:
    """Yield the saved values of a node: torch's name, the value, and its state.

    The value is None if it is freed, or behind hooks (checkpointing, offloading), which would have to be run. Before
    torch 2.8, which does not expose hooks, they are run.
    """
    for attribute in dir(node):
        if attribute.startswith("_raw_saved_"):
            yield from _saved_values(node, attribute.removeprefix("_raw"))


def _saved_values(node: Any, attribute: str) -> Iterator[tuple[str, Any, State]]:
    """Yield the values of one saved attribute; that of a custom Function contains all its saved values, also lists."""
    name = attribute.removeprefix("_saved_")
    try:
        raw = getattr(node, f"_raw{attribute}")
        several = isinstance(raw, tuple | list)
        if any(getattr(each, "unpack_hook", None) is not None for each in (raw if several else (raw,))):
            yield name, None, "hooked"
            return
        value = getattr(node, "saved_tensors" if attribute == "_saved_tensors" else attribute)
    except RuntimeError:  # torch: "Trying to backward through the graph a second time (or directly access ...)"
        yield name, None, "freed"
        return
    if isinstance(value, tuple | list):
        for place, each in enumerate(cast("tuple[Any, ...]", value)):
            if each is not None:
                yield f"{name}[{place}]", each, "kept"
    elif value is not None:
        yield name, value, "kept"


def places(edges: Sequence[tuple[int, int]], offsets: Sequence[float]) -> list[tuple[int, float]]:
    """Return the column and row of each node: its longest path from the root, and its row offset.

    Args:
        edges: (from, to), each node's first parent before the others.
        offsets: row offset of each node from its first parent.
    """
    depth, rows = depths(len(offsets), edges), [0.0] * len(offsets)
    placed = {0}
    for parent, child in edges:
        if child not in placed:
            placed.add(child)
            rows[child] = rows[parent] + offsets[child]
    last, top = max(depth), min(rows)
    return [(last - column, row - top) for column, row in zip(depth, rows, strict=True)]


def depths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the longest path from the root to each node, in edges."""
    children: dict[int, list[int]] = {}
    waits = [0] * count
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
        waits[child] += 1
    depth = [0] * count
    ready = [node for node in range(count) if not waits[node]]
    while ready:
        node = ready.pop()
        for child in children.get(node, ()):
            depth[child] = max(depth[child], depth[node] + 1)
            waits[child] -= 1
            if not waits[child]:
                ready.append(child)
    return depth
