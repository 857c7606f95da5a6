"""Traverse the autograd graph of a tensor: nodes, edges, saved tensors, and a layout for drawing.

The functions take any objects with ``next_functions``, such as torch's nodes, and run neither these nor hooks.
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
    row_offsets: list[float]
    """Row offset of each node from its first parent in a drawing, which has the inputs of an operation in order."""
    cut: bool
    """True if the graph has more nodes than the limit."""


def walk(root: Any, limit: int) -> Walk:
    """Return the nodes of a graph that are nearest to its root, up to a limit.

    Args:
        root: a tensor's ``grad_fn``.
        limit: largest number of nodes.
    """
    nodes, indices, row_offsets, cut = [root], {root: 0}, [0.0], False
    edges: list[tuple[int, int]] = []
    for index, node in enumerate(nodes):  # the list grows during the loop
        children = [child for child, _ in node.next_functions if child is not None]
        for position, child in enumerate(children):
            if child not in indices and len(nodes) == limit:
                cut = True
                continue
            if child not in indices:
                indices[child] = len(nodes)
                nodes.append(child)
                row_offsets.append(position - (len(children) - 1) / 2)
            edges.append((index, indices[child]))
    return Walk(nodes, edges, row_offsets, cut)


class SavedValue(NamedTuple):
    """A value that a node has saved for the backward pass."""

    name: str
    """torch's name of the value."""
    value: Any
    """None if it is freed, or if hooks have packed it (checkpointing, offloading), as unpacking would run the hooks."""
    state: State


def saved_values(node: Any) -> Iterator[SavedValue]:
    """Yield the saved values of a node. Before torch 2.8 hooks cannot be detected, and are run."""
    for attribute in dir(node):
        if attribute.startswith("_raw_saved_"):
            yield from _saved_values(node, attribute.removeprefix("_raw"))


def _saved_values(node: Any, attribute: str) -> Iterator[SavedValue]:
    """Yield the values of one saved attribute; a custom Function has all its saved values in one attribute."""
    name = attribute.removeprefix("_saved_")
    try:
        raw = getattr(node, f"_raw{attribute}")
        is_sequence = isinstance(raw, tuple | list)
        if any(getattr(each, "unpack_hook", None) is not None for each in (raw if is_sequence else (raw,))):
            yield SavedValue(name, None, "hooked")
            return
        value = getattr(node, "saved_tensors" if attribute == "_saved_tensors" else attribute)
    except RuntimeError:  # torch: "Trying to backward through the graph a second time (or directly access ...)"
        yield SavedValue(name, None, "freed")
        return
    if isinstance(value, tuple | list):
        for index, each in enumerate(cast("tuple[Any, ...]", value)):
            if each is not None:
                yield SavedValue(f"{name}[{index}]", each, "kept")
    elif value is not None:
        yield SavedValue(name, value, "kept")


def node_positions(edges: Sequence[tuple[int, int]], row_offsets: Sequence[float]) -> list[tuple[int, float]]:
    """Return the column and row in which to draw each node of a graph from left to right; the root is rightmost.

    Args:
        edges: (from, to), each node's first parent before the others.
        row_offsets: row offset of each node from its first parent.
    """
    depths, rows = node_depths(len(row_offsets), edges), [0.0] * len(row_offsets)
    placed = {0}
    for parent, child in edges:
        if child not in placed:
            placed.add(child)
            rows[child] = rows[parent] + row_offsets[child]
    last_column, first_row = max(depths), min(rows)
    return [(last_column - depth, row - first_row) for depth, row in zip(depths, rows, strict=True)]


def node_depths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of edges of the longest path from the root to each node."""
    children: dict[int, list[int]] = {}
    missing_parents = [0] * count
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
        missing_parents[child] += 1
    depths = [0] * count
    ready = [node for node in range(count) if not missing_parents[node]]
    while ready:
        node = ready.pop()
        for child in children.get(node, ()):
            depths[child] = max(depths[child], depths[node] + 1)
            missing_parents[child] -= 1
            if not missing_parents[child]:
                ready.append(child)
    return depths
