"""The graph of a loss: operations and modules, saved memory and its holders, and unreachable parameters."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trueloop.autograd.graph import Graph, inspect, record_modules
from trueloop.autograd.stable_softmax import softmax
from trueloop.core.errors import InvalidData


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).square())


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net()


def inspected(model: nn.Module, x: Tensor, **named: Tensor) -> Graph:
    with record_modules(model):
        loss = F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.int64))
    return inspect(loss, model, {"x": x, "loss": loss, **named})


def test_every_operation_has_its_module(model: Net):
    graph = inspected(model, torch.randn(5, 3))
    modules = {node.name: node.module for node in graph.nodes if not node.leaf}
    assert modules["PowBackward0"] == ""  # nodes of the root module have an empty name
    assert modules["ReluBackward0"] == "body.1"
    assert modules["NllLossBackward0"] == "", "outside of all"
    assert {node.module for node in graph.nodes if node.name == "AddmmBackward0"} == {"body.0", "head"}
    assert graph.nodes[0].tensor_name == "loss"


def test_the_hooks_are_removed_even_after_an_error(model: Net):
    with pytest.raises(RuntimeError), record_modules(model):
        model(torch.randn(5, 7))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_shared_storages_count_once(model: Net):
    x = torch.randn(5, 3)
    graph = inspected(model, x)
    by_size = {memory.size_b: memory for memory in graph.memories}
    relu = by_size[5 * 4 * 4]
    names = {(graph.nodes[place].name, name) for place, name in relu.holders}
    assert ("ReluBackward0", "result") in names
    assert len(graph.memories) == len({id(memory) for memory in graph.memories})
    assert next(each for each in graph.memories if each.owner == "x").size_b == 5 * 3 * 4
    assert next(each for each in graph.memories if each.owner == "head.weight").size_b == 2 * 4 * 4
    assert [each.size_b for each in graph.memories] == sorted((each.size_b for each in graph.memories), reverse=True)
    assert graph.graph_only_b == sum(each.size_b for each in graph.memories if not each.owner)


def test_a_saved_view_keeps_its_full_storage():
    full = torch.randn(1000, requires_grad=True).exp()
    graph = inspect(full[:2].exp().square().sum())
    assert {memory.size_b for memory in graph.memories} >= {4000, 8}


def test_unreachable_parameters_are_listed(model: Net):
    model.body[0].bias.requires_grad_(False)
    graph = inspected(model, torch.randn(5, 3))
    assert graph.unreachable == ("unused.weight", "unused.bias")
    assert graph.frozen == ("body.0.bias",)
    assert {node.tensor_name for node in graph.nodes if node.leaf} == {"body.0.weight", "head.weight", "head.bias"}


def test_after_backward_all_saved_tensors_are_freed(model: Net):
    loss = model(torch.randn(5, 3)).square().mean()
    assert not inspect(loss, model).released
    loss.backward(retain_graph=True)
    assert not inspect(loss, model).released
    loss.backward()
    graph = inspect(loss, model)
    assert graph.released
    assert graph.graph_only_b == 0


@pytest.mark.reads_saved
def test_inspecting_does_not_recompute_checkpointed_blocks(model: Net):
    runs: list[int] = []

    def body(x: Tensor) -> Tensor:
        runs.append(1)
        return model.body(x).exp()

    loss = model.head(checkpoint(body, torch.randn(5, 3), use_reentrant=False)).sum()
    graph = inspect(loss, model)
    assert len(runs) == 1
    assert graph.hooked > 0
    saved_tensors = [each for node in graph.nodes for each in node.saved if each.state == "hooked"]
    assert all(each.memory is None for each in saved_tensors)
    loss.backward()
    assert len(runs) == 2


def test_custom_functions_and_lists_of_saved_tensors():
    x = torch.randn(3, requires_grad=True)
    graph = inspect(softmax(torch.stack([x, x])).prod())
    [function] = [node for node in graph.nodes if node.name == "_SoftmaxBackward"]
    assert [(tensor.name, tensor.shape) for tensor in function.saved] == [("tensors[0]", (2, 3))]
    indexed = inspect(x[torch.tensor([0, 2])].sum())
    [index] = [node for node in indexed.nodes if node.name == "IndexBackward0"]
    assert [tensor.shape for tensor in index.saved] == [(2,)]


def test_inspecting_keeps_no_tensor_alive(model: Net):
    loss = model(torch.randn(5, 3)).square().mean()
    alive: list[int] = []

    class Mark:
        def __del__(self) -> None:
            alive.append(1)

    loss.grad_fn.metadata["mark"] = Mark()
    graph = inspect(loss, model)
    del loss
    gc.collect()
    assert alive
    assert graph.nodes


def test_a_tied_weight_is_one_leaf(model: Net):
    model.unused.weight = model.body[0].weight
    graph = inspected(model, torch.randn(5, 3))
    assert graph.unreachable == ("unused.bias",)
    assert sum(node.tensor_name == "body.0.weight" for node in graph.nodes) == 1


def test_a_tensor_without_a_graph_is_refused():
    with pytest.raises(InvalidData, match=r"The tensor of shape \(2,\) has no graph"):
        inspect(torch.ones(2, requires_grad=True))
