"""Draws a graph as SVG: the loss on top, nodes that keep memory filled."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from trueloop.autograd.backward_graph import places
from trueloop.autograd.graph import Graph, Node
from trueloop.autograd.graph_text import title
from trueloop.core.formatting import format_size, replace_unprintable
from trueloop.core.html import Markup, element

MAX_NODES: Final = 400  # larger pictures are unreadable
WIDE, HIGH, ACROSS, DOWN, EDGE = 190, 34, 210, 62, 20  # pixels: a box, from box to box, the margin
STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1a1a1a}.small{font-size:10px;fill:#444}rect{stroke:#555;fill:#fff;rx:4}"
    ".leaf rect{fill:#dbeafe}.keeps rect{fill:#fde68a}.freed rect{fill:#eee;stroke-dasharray:4 3}"
    "line{stroke:#888;marker-end:url(#tip)}"
)


def picture(graph: Graph) -> str:
    """Return the graph as an SVG document; of more than 400 nodes only those nearest to the loss.

    Blue boxes are parameters, yellow ones keep memory that nothing else keeps, dashed ones are freed. The tooltip of
    each box lists its saved tensors.
    """
    shown = min(len(graph.nodes), MAX_NODES)
    edges = [(a, b) for a, b in graph.edges if a < shown and b < shown]
    spots = _box_corners(places(edges, graph.offsets[:shown]))
    width = 2 * EDGE + WIDE + max(x for x, _ in spots)
    height = 2 * EDGE + HIGH + max(y for _, y in spots)
    tip = element(
        "marker", element("path", d="M0 0L8 4L0 8z", fill="#888"),
        id="tip", markerWidth=8, markerHeight=8, refX=8, refY=4, orient="auto",
    )  # fmt: skip
    cut = element("desc", f"{len(graph.nodes) - shown} more nodes are not drawn.") if shown < len(graph.nodes) else ""
    return element(
        "svg",
        element("title", "The autograd graph of the loss"),
        cut,
        element("style", Markup(STYLE)),
        element("defs", tip),
        *(_line(spots[a], spots[b]) for a, b in edges),
        *(_box(graph, node, spot) for node, spot in zip(graph.nodes, spots, strict=False)),
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


def _box(graph: Graph, node: Node, spot: tuple[float, float]) -> Markup:
    own = {kept.memory for kept in node.kept if kept.memory is not None and not graph.memories[kept.memory].owner}
    alone_b = sum(graph.memories[place].size_b for place in own)
    freed = any(kept.state == "freed" for kept in node.kept)
    kind = "leaf" if node.leaf else "keeps" if alone_b else "freed" if freed else "passes"
    below = "; ".join(
        part for part in (node.module or node.name * node.leaf, f"keeps {format_size(alone_b)}" * bool(alone_b)) if part
    )
    head = node.of if node.leaf else node.name
    x, y = spot
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
    for kept in node.kept:
        memory = graph.memories[kept.memory] if kept.memory is not None else None
        size = f"{format_size(memory.size_b)} {memory.owner and f'of {memory.owner}'}" if memory else kept.state
        yield f"{kept.name} {list(kept.shape)} {kept.dtype} {size}".rstrip()


def _truncate(text: str, most: int) -> str:
    text = replace_unprintable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
