from __future__ import annotations

import torch
from torch import nn

from trueloop.lab.teaching import graph


def _perceptron() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    inputs, targets = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
    hidden = model[:2](inputs)
    outputs = model[2](hidden)
    loss = nn.functional.cross_entropy(outputs, targets)
    named = {"inputs": inputs, "targets": targets, **dict(model.named_parameters())}
    return named | {"hidden": hidden, "outputs": outputs, "loss": loss}


def test_nodes_have_the_names_of_parameters_and_results():
    loss_graph = graph.read_graph("loss", _perceptron())
    assert {node.tensor_name for node in loss_graph.nodes if node.leaf} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {node.tensor_name for node in loss_graph.nodes if not node.leaf and node.tensor_name} == {
        "hidden",
        "outputs",
        "loss",
    }
    assert all(node.description for node in loss_graph.nodes)


def test_edges_follow_next_functions():
    named = _perceptron()
    loss_graph = graph.read_graph("loss", named)
    node, root = loss_graph.nodes[0], named["loss"].grad_fn
    assert root is not None
    assert node.name == root.name()
    children = [loss_graph.nodes[to].name for parent, to in loss_graph.edges if parent == 0]
    assert children == [child.name() for child, _ in root.next_functions if child is not None]


def test_saved_tensors_have_names_and_sizes():
    loss_graph = graph.read_graph("loss", _perceptron())
    second = next(node for node in loss_graph.nodes if node.tensor_name == "outputs")
    assert {(each.name, each.tensor_name, each.size_b) for each in second.saved} == {
        ("mat1", "hidden", 5 * 4 * 4),
        ("mat2", "2.weight", 3 * 4 * 4),
    }
    first = next(node for node in loss_graph.nodes if node.saved and node.saved[0].tensor_name == "inputs")
    assert [each.name for each in first.saved] == ["mat1"]  # the inputs need no gradient, so the weight is not kept


def test_backward_frees_saved_tensors_unless_the_graph_is_retained():
    named = _perceptron()
    before = graph.read_graph("loss", named)
    named["loss"].backward(retain_graph=True)
    assert graph.read_graph("loss", named) == before
    named["loss"].backward()
    released = graph.read_graph("loss", named)
    assert (released.saved_b, released.released) == (0, True)
    assert [node.name for node in released.nodes] == [node.name for node in before.nodes]


def test_every_node_has_its_own_position():
    loss_graph = graph.read_graph("loss", _perceptron())
    assert len({(node.column, node.row) for node in loss_graph.nodes}) == len(loss_graph.nodes)
    assert all(node.column >= 0 and node.row >= 0 for node in loss_graph.nodes)
    assert all(loss_graph.nodes[to].column < loss_graph.nodes[parent].column for parent, to in loss_graph.edges)


def test_a_node_with_two_parents_is_left_of_both():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    loss_graph = graph.read_graph("z", {"x": x, "y": y, "z": (y * y.exp()).sum()})
    assert all(loss_graph.nodes[to].column < loss_graph.nodes[parent].column for parent, to in loss_graph.edges)


def test_live_operations_are_counted():
    live_graphs = graph.LiveGraphs()
    y = (torch.ones(2, requires_grad=True) * 2).exp()
    live_graphs.mark(y)
    live_graphs.mark(y)
    assert live_graphs.count == 2
    del y
    assert live_graphs.count == 0
