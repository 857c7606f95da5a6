"""Traverses the autograd graph of a tensor: nodes, edges, saved tensors, and a layout for drawing.

It works on any objects with ``next_functions``, such as torch's nodes, and runs neither them nor hooks.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

State = Literal["kept", "freed", "hooked"]


class Walk(NamedTuple):
    """The result of `walk`."""

    nodes: list[Any]
    """The nodes, breadth first from the root."""
    edges: list[tuple[int, int]]
    """(from, to) as indices into ``nodes``, in the direction of backward."""
    offsets: list[float]
    """Row offset of each node from its first parent: the inputs of an operation are drawn in order."""
    cut: bool
    """True if the graph has more nodes than the limit."""


def walk(root: Any, limit: int) -> Walk:
    """Return the nodes of a graph that are nearest to its root, up to a limit.

    Args:
        root: a tensor's ``grad_fn``.
        limit: largest number of nodes.
    """
    nodes, indices, offsets, cut = [root], {root: 0}, [0.0], False
    edges: list[tuple[int, int]] = []
    for index, node in enumerate(nodes):  # the list grows during the loop
        children = [child for child, _ in node.next_functions if child is not None]
        for slot, child in enumerate(children):
            if child not in indices and len(nodes) == limit:
                cut = True
                continue
            if child not in indices:
                indices[child] = len(nodes)
                nodes.append(child)
                offsets.append(slot - (len(children) - 1) / 2)
            edges.append((index, indices[child]))
    return Walk(nodes, edges, offsets, cut)


def saved(node: Any) -> Iterator[tuple[str, Any, State]]:
    """Yield the saved values of a node: torch's name, the value, and its state.

    The value is None if it is freed, or if hooks have packed it (checkpointing, offloading), as unpacking would run
    them. Before torch 2.8 hooks cannot be detected, and are run.
    """
    for attribute in dir(node):
        if attribute.startswith("_raw_saved_"):
            yield from _saved_values(node, attribute.removeprefix("_raw"))


def _saved_values(node: Any, attribute: str) -> Iterator[tuple[str, Any, State]]:
    """Yield the values of one saved attribute; a custom Function has all its saved values in one attribute."""
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
        for index, each in enumerate(cast("tuple[Any, ...]", value)):
            if each is not None:
                yield f"{name}[{index}]", each, "kept"
    elif value is not None:
        yield name, value, "kept"


def places(edges: Sequence[tuple[int, int]], offsets: Sequence[float]) -> list[tuple[int, float]]:
    """Return the column and row in which to draw each node; the root is in the last column.

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
    """Return the number of edges of the longest path from the root to each node."""
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
