"""The graph behind a tensor, walked: its nodes, their edges, what each has saved, and where each would be drawn.

Works on any objects with ``next_functions``, as torch's nodes are; nothing is run, and no hook of the program's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

State = Literal["kept", "freed", "hooked"]


class Walk(NamedTuple):
    """Nodes breadth first from the root."""

    nodes: list[Any]
    edges: list[tuple[int, int]]
    """(from, to) by place in ``nodes``, as backward goes."""
    turns: list[float]
    """How far each node lies off its first parent's row: what an operation was given is drawn in its order, a layer's
    bias above, its inputs ahead, its weight below."""
    cut: bool
    """There are more nodes than were asked for."""


def walk(root: Any, most: int) -> Walk:
    """Return at most so many nodes behind a root, the nearest ones.

    Args:
        root: a tensor's ``grad_fn``.
        most: nodes.
    """
    nodes, numbers, turns, cut = [root], {root: 0}, [0.0], False
    edges: list[tuple[int, int]] = []
    for place, node in enumerate(nodes):  # grows as it goes
        given = [child for child, _ in node.next_functions if child is not None]
        for slot, child in enumerate(given):
            if child not in numbers and len(nodes) == most:
                cut = True
                continue
            if child not in numbers:
                numbers[child] = len(nodes)
                nodes.append(child)
                turns.append(slot - (len(given) - 1) / 2)
            edges.append((place, numbers[child]))
    return Walk(nodes, edges, turns, cut)


def saved(node: Any) -> Iterator[tuple[str, Any, State]]:
    """Yield what a node has saved: torch's name for it, the value, and whether it is there.

    The value is None where it is freed, or behind hooks (checkpointing, offloading), which would have to be run. Before
    torch 2.8, which does not tell that there are any, they are run.
    """
    for attribute in dir(node):
        if attribute.startswith("_raw_saved_"):
            yield from _held(node, attribute.removeprefix("_raw"))


def _held(node: Any, attribute: str) -> Iterator[tuple[str, Any, State]]:
    """Yield one of a node's attributes; a custom Function's holds all that it has saved, and may hold lists."""
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


def places(edges: Sequence[tuple[int, int]], turns: Sequence[float]) -> list[tuple[int, float]]:
    """Return the column and the row of each node: its longest way from the root, and its turn off the way to it.

    Args:
        edges: (from, to), each node's first parent before the others.
        turns: how far a node lies beside its first parent, in rows.
    """
    depth, rows = depths(len(turns), edges), [0.0] * len(turns)
    placed = {0}
    for parent, child in edges:
        if child not in placed:
            placed.add(child)
            rows[child] = rows[parent] + turns[child]
    last, top = max(depth), min(rows)
    return [(last - column, row - top) for column, row in zip(depth, rows, strict=True)]


def depths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return each node's longest way from the root, in edges."""
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
