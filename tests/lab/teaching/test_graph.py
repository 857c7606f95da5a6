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


def test_leaves_are_the_parameters_and_operations_the_results():
    read = graph.read("loss", _perceptron())
    assert {node.of for node in read.nodes if node.leaf} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {node.of for node in read.nodes if not node.leaf and node.of} == {"hidden", "outputs", "loss"}
    assert all(node.does for node in read.nodes)


def test_edges_are_those_of_torch():
    named = _perceptron()
    read = graph.read("loss", named)
    node, root = read.nodes[0], named["loss"].grad_fn
    assert root is not None
    assert node.name == root.name()
    below = [read.nodes[to].name for place, to in read.edges if place == 0]
    assert below == [child.name() for child, _ in root.next_functions if child is not None]


def test_what_is_saved_has_the_programs_name_and_its_size():
    read = graph.read("loss", _perceptron())
    second = next(node for node in read.nodes if node.of == "outputs")
    assert {(each.name, each.of, each.size_b) for each in second.saved} == {
        ("mat1", "hidden", 5 * 4 * 4),
        ("mat2", "2.weight", 3 * 4 * 4),
    }
    first = next(node for node in read.nodes if node.saved and node.saved[0].of == "inputs")
    assert [each.name for each in first.saved] == ["mat1"]  # the inputs need no gradient, so the weight is not kept


def test_backward_frees_what_was_saved_and_retain_graph_keeps_it():
    named = _perceptron()
    before = graph.read("loss", named)
    named["loss"].backward(retain_graph=True)
    assert graph.read("loss", named) == before
    named["loss"].backward()
    freed = graph.read("loss", named)
    assert (freed.saved_b, freed.released) == (0, True)
    assert [node.name for node in freed.nodes] == [node.name for node in before.nodes]


def test_every_node_has_a_place_of_its_own_and_gradients_flow_to_the_left():
    read = graph.read("loss", _perceptron())
    assert len({(node.column, node.row) for node in read.nodes}) == len(read.nodes)
    assert all(node.column >= 0 and node.row >= 0 for node in read.nodes)
    assert all(read.nodes[to].column < read.nodes[place].column for place, to in read.edges)


def test_a_node_that_two_lead_to_lies_beyond_both():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    read = graph.read("z", {"x": x, "y": y, "z": (y * y.exp()).sum()})
    assert all(read.nodes[to].column < read.nodes[place].column for place, to in read.edges)


def test_operations_are_counted_while_they_live():
    living = graph.LiveGraphs()
    y = (torch.ones(2, requires_grad=True) * 2).exp()
    living.mark(y)
    living.mark(y)
    assert living.count == 2
    del y
    assert living.count == 0
