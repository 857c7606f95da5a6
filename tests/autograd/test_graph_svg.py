"""The picture of a graph: valid XML, one box per node without overlaps, and escaped names."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import torch
from torch import nn

from trueloop.autograd.graph import inspect
from trueloop.autograd.graph_svg import BOX_HEIGHT, BOX_WIDTH, MAX_NODES, picture

SVG = "{http://www.w3.org/2000/svg}"


def parse_svg(graph) -> ET.Element:
    return ET.fromstring(picture(graph))


def test_boxes_do_not_overlap_and_gradients_flow_down():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    graph = inspect(model(torch.randn(3, 2, 8)).square().mean(), model)
    root = parse_svg(graph)
    boxes = [(float(box.get("x")), float(box.get("y"))) for box in root.iter(f"{SVG}rect")]
    assert len(boxes) == len(graph.nodes)
    for i, (x, y) in enumerate(boxes):
        for other_x, other_y in boxes[:i]:
            assert abs(x - other_x) >= BOX_WIDTH or abs(y - other_y) >= BOX_HEIGHT
    lines = list(root.iter(f"{SVG}line"))
    assert len(lines) == len(graph.edges)
    assert all(float(line.get("y2")) > float(line.get("y1")) for line in lines)
    assert max(x for x, _ in boxes) + BOX_WIDTH <= float(root.get("width"))
    assert max(y for _, y in boxes) + BOX_HEIGHT <= float(root.get("height"))


def test_leaves_memory_and_freed_nodes_have_classes():
    x = torch.randn(3, requires_grad=True)
    loss = x.exp().sum()
    kinds = [group.get("class") for group in parse_svg(inspect(loss, named={"x": x})).iter(f"{SVG}g")]
    assert sorted(kinds) == ["keeps", "leaf", "plain"]
    loss.backward()
    kinds = [group.get("class") for group in parse_svg(inspect(loss)).iter(f"{SVG}g")]
    assert sorted(kinds) == ["freed", "leaf", "plain"]


def test_names_are_escaped_and_complete_in_the_tooltip():
    x = torch.randn(3, requires_grad=True)
    name = "<script>&\"'" * 5
    root = parse_svg(inspect(x.sum(), named={name: x}))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert name in titles
    assert not list(root.iter(f"{SVG}script"))


def test_of_a_large_graph_only_the_nearest_nodes_are_drawn():
    y = torch.ones(1, requires_grad=True)
    for _ in range(MAX_NODES + 10):
        y = y + 1
    root = parse_svg(inspect(y))
    assert len(list(root.iter(f"{SVG}rect"))) == MAX_NODES
    assert root.find(f"{SVG}desc").text == "11 more nodes are not drawn."
