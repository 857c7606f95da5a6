"""Draw a graph as SVG, with the loss on top; nodes that keep memory alive are filled."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from trueloop.autograd.backward_graph import node_positions
from trueloop.autograd.graph import Graph, Node
from trueloop.autograd.graph_text import node_title
from trueloop.core.formatting import format_size, replace_unprintable
from trueloop.core.html import Markup, element

MAX_NODES: Final = 400  # larger pictures are unreadable
BOX_WIDTH, BOX_HEIGHT, STEP_X, STEP_Y, MARGIN = 190, 34, 210, 62, 20  # pixels; a step leads from one box to the next
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
    corners = _box_corners(node_positions(edges, graph.row_offsets[:drawn]))
    width = 2 * MARGIN + BOX_WIDTH + max(x for x, _ in corners)
    height = 2 * MARGIN + BOX_HEIGHT + max(y for _, y in corners)
    arrow = element(
        "marker", element("path", d="M0 0L8 4L0 8z", fill="#888"),
        id="tip", markerWidth=8, markerHeight=8, refX=8, refY=4, orient="auto",
    )  # fmt: skip
    cut = element("desc", f"{len(graph.nodes) - drawn} more nodes are not drawn.") if drawn < len(graph.nodes) else ""
    return element(
        "svg",
        element("title", "The autograd graph of the loss"),
        cut,
        element("style", Markup(STYLE)),
        element("defs", arrow),
        *(_line(corners[a], corners[b]) for a, b in edges),
        *(_box(graph, node, corner) for node, corner in zip(graph.nodes, corners, strict=False)),
        xmlns="http://www.w3.org/2000/svg",
        width=round(width),
        height=round(height),
        viewBox=f"0 0 {round(width)} {round(height)}",
        role="img",
    )


def _box_corners(positions: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the upper left corner of each box in pixels; overlapping boxes are moved apart."""
    # The positions have the loss in the last column; this picture has it at depth 0, on top.
    last_column = max(column for column, _ in positions)
    depths = [last_column - column for column, _ in positions]
    lanes = [row for _, row in positions]
    for depth in range(last_column + 1):
        same_depth = sorted((node for node, each in enumerate(depths) if each == depth), key=lambda node: lanes[node])
        for left, right in pairwise(same_depth):
            lanes[right] = max(lanes[right], lanes[left] + 1)
    leftmost = min(lanes)
    return [
        (MARGIN + (lane - leftmost) * STEP_X, MARGIN + depth * STEP_Y)
        for lane, depth in zip(lanes, depths, strict=True)
    ]


def _line(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    half = BOX_WIDTH / 2
    return element("line", x1=start[0] + half, y1=start[1] + BOX_HEIGHT, x2=end[0] + half, y2=end[1])


def _box(graph: Graph, node: Node, corner: tuple[float, float]) -> Markup:
    indices = {tensor.memory for tensor in node.saved if tensor.memory is not None}
    graph_only_b = sum(graph.memories[index].size_b for index in indices if not graph.memories[index].owner)
    freed = any(tensor.state == "freed" for tensor in node.saved)
    css_class = "leaf" if node.leaf else "keeps" if graph_only_b else "freed" if freed else "plain"
    parts = (node.module or node.name * node.leaf, f"keeps {format_size(graph_only_b)}" * bool(graph_only_b))
    caption = "; ".join(filter(None, parts))
    heading = node.tensor_name if node.leaf else node.name
    x, y = corner
    return element(
        "g",
        element("title", "\n".join(_tooltip(graph, node))),
        element("rect", x=x, y=y, width=BOX_WIDTH, height=BOX_HEIGHT),
        element("text", _truncate(heading or node.name, 28), x=x + 8, y=y + 15),
        element("text", _truncate(caption, 34), x=x + 8, y=y + 28, class_="small"),
        class_=css_class,
    )


def _tooltip(graph: Graph, node: Node) -> Iterator[str]:
    yield node_title(node)
    for tensor in node.saved:
        memory = graph.memories[tensor.memory] if tensor.memory is not None else None
        size = f"{format_size(memory.size_b)} {memory.owner and f'of {memory.owner}'}" if memory else tensor.state
        yield f"{tensor.name} {list(tensor.shape)} {tensor.dtype} {size}".rstrip()


def _truncate(text: str, length: int) -> str:
    text = replace_unprintable(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"
