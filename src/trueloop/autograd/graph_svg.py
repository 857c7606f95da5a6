"""Draws a graph as SVG, with the loss on top; nodes that keep memory alive are filled."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from trueloop.autograd.backward_graph import places
from trueloop.autograd.graph import Graph, Node
from trueloop.autograd.graph_text import title
from trueloop.core.formatting import format_size, replace_unprintable
from trueloop.core.html import Markup, element

MAX_NODES: Final = 400  # larger pictures are unreadable
WIDE, HIGH, ACROSS, DOWN, EDGE = 190, 34, 210, 62, 20  # pixels: size of a box, distances between boxes, margin
STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1a1a1a}.small{font-size:10px;fill:#444}rect{stroke:#555;fill:#fff;rx:4}"
    ".leaf rect{fill:#dbeafe}.keeps rect{fill:#fde68a}.freed rect{fill:#eee;stroke-dasharray:4 3}"
    "line{stroke:#888;marker-end:url(#tip)}"
)


def picture(graph: Graph) -> str:
    """Return the graph as an SVG document; at most the 400 nodes nearest to the loss are drawn.

    Blue boxes are parameters, yellow boxes keep memory alive that nothing else holds, and dashed boxes had their saved
    tensors freed. The tooltip of each box lists its saved tensors.
    """
    drawn = min(len(graph.nodes), MAX_NODES)
    edges = [(a, b) for a, b in graph.edges if a < drawn and b < drawn]
    corners = _box_corners(places(edges, graph.offsets[:drawn]))
    width = 2 * EDGE + WIDE + max(x for x, _ in corners)
    height = 2 * EDGE + HIGH + max(y for _, y in corners)
    tip = element(
        "marker", element("path", d="M0 0L8 4L0 8z", fill="#888"),
        id="tip", markerWidth=8, markerHeight=8, refX=8, refY=4, orient="auto",
    )  # fmt: skip
    cut = element("desc", f"{len(graph.nodes) - drawn} more nodes are not drawn.") if drawn < len(graph.nodes) else ""
    return element(
        "svg",
        element("title", "The autograd graph of the loss"),
        cut,
        element("style", Markup(STYLE)),
        element("defs", tip),
        *(_line(corners[a], corners[b]) for a, b in edges),
        *(_box(graph, node, corner) for node, corner in zip(graph.nodes, corners, strict=False)),
        xmlns="http://www.w3.org/2000/svg",
        width=round(width),
        height=round(height),
        viewBox=f"0 0 {round(width)} {round(height)}",
        role="img",
    )


def _box_corners(placed: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the upper left corner of each box in pixels; overlapping boxes are moved apart."""
    deepest = max(column for column, _ in placed)
    across = [row for _, row in placed]
    for level in range(deepest + 1):
        row_nodes = sorted((i for i, (column, _) in enumerate(placed) if column == level), key=lambda i: across[i])
        for left, right in pairwise(row_nodes):
            across[right] = max(across[right], across[left] + 1)
    leftmost = min(across)
    return [
        (EDGE + (row - leftmost) * ACROSS, EDGE + (deepest - column) * DOWN)
        for row, (column, _) in zip(across, placed, strict=True)
    ]


def _line(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    half = WIDE / 2
    return element("line", x1=start[0] + half, y1=start[1] + HIGH, x2=end[0] + half, y2=end[1])


def _box(graph: Graph, node: Node, corner: tuple[float, float]) -> Markup:
    indices = {tensor.memory for tensor in node.saved if tensor.memory is not None}
    alone_b = sum(graph.memories[index].size_b for index in indices if not graph.memories[index].owner)
    freed = any(tensor.state == "freed" for tensor in node.saved)
    kind = "leaf" if node.leaf else "keeps" if alone_b else "freed" if freed else "passes"
    below = "; ".join(
        part for part in (node.module or node.name * node.leaf, f"keeps {format_size(alone_b)}" * bool(alone_b)) if part
    )
    head = node.tensor_name if node.leaf else node.name
    x, y = corner
    return element(
        "g",
        element("title", "\n".join(_tooltip(graph, node))),
        element("rect", x=x, y=y, width=WIDE, height=HIGH),
        element("text", _truncate(head or node.name, 28), x=x + 8, y=y + 15),
        element("text", _truncate(below, 34), x=x + 8, y=y + 28, class_="small"),
        class_=kind,
    )


def _tooltip(graph: Graph, node: Node) -> Iterator[str]:
    yield title(node)
    for tensor in node.saved:
        memory = graph.memories[tensor.memory] if tensor.memory is not None else None
        size = f"{format_size(memory.size_b)} {memory.owner and f'of {memory.owner}'}" if memory else tensor.state
        yield f"{tensor.name} {list(tensor.shape)} {tensor.dtype} {size}".rstrip()


def _truncate(text: str, length: int) -> str:
    text = replace_unprintable(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"
