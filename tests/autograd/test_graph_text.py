"""The text of a graph: sums, holders by name, and a tree in which every node is printed once."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from trueloop.autograd.graph import inspect, record_modules
from trueloop.autograd.graph_text import largest_storage_lines, module_lines, overview_lines, tree


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.left = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.inner(x).relu())


def inspected() -> tuple[Residual, Tensor]:
    torch.manual_seed(0)
    model, start = Residual(), nn.Parameter(torch.randn(3, 4))
    with record_modules(model):
        loss = model(start * 2).square().sum()
    return model, loss


def test_the_overview_lists_unreachable_parameters():
    model, loss = inspected()
    text = "\n".join(overview_lines(inspect(loss, model)))
    assert "never reached by this loss: left.weight, left.bias" in text
    assert "freed" not in text
    loss.backward()
    assert "backward has already run" in "\n".join(overview_lines(inspect(loss, model)))
    reached = "\n".join(overview_lines(inspect(inspected()[1], nn.Linear(1, 1).requires_grad_(False))))
    assert "every parameter that requires a gradient is reached" in reached
    assert "frozen: weight, bias" in reached


def test_every_node_is_printed_once_and_otherwise_referenced():
    model, loss = inspected()
    graph = inspect(loss, model)
    lines = list(tree(graph))
    printed = [int(match[1]) for line in lines if (match := re.match(r"(?:\| )*(\d+) ", line))]
    pointed = [int(match[1]) for line in lines if (match := re.match(r"(?:\| )*-> (\d+) ", line))]
    assert sorted(printed) == list(range(len(graph.nodes)))
    assert len(printed) + len(pointed) == len(graph.edges) + 1
    for place in pointed:  # below its references
        assert lines.index(next(line for line in lines if re.match(rf"(?:\| )*-> {place} ", line))) < lines.index(
            next(line for line in lines if re.match(rf"(?:\| )*{place} ", line))
        )


def test_the_longest_path_is_not_indented():
    graph = inspect(inspected()[1])
    margin = [line for line in tree(graph) if re.match(r"\d", line)]
    assert [line.split()[1] for line in margin][:5] == [
        *("SumBackward0", "PowBackward0", "AddBackward0", "AddmmBackward0", "ReluBackward0")
    ]
    assert margin[-1].endswith("a leaf without a name")


def test_a_long_chain_is_no_recursion_error():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y + 1
    assert sum(1 for _ in tree(inspect(y))) == 3001


def test_the_largest_storages_are_listed_with_their_holders():
    model, loss = inspected()
    graph = inspect(loss, model)
    text = "\n".join(largest_storage_lines(graph))
    assert re.search(r"AddmmBackward0 \d+ \(mat1\), ReluBackward0 \d+ \(result\)", text)
    assert "inner.weight, which stays" in text


def test_modules_sum_to_the_memory_of_the_graph():
    model, loss = inspected()
    graph = inspect(loss, model)
    sizes = [int(match[1]) for line in module_lines(graph) if (match := re.match(r" *(\d+) byte", line))]
    assert sum(sizes) == graph.graph_only_b
    assert any("inner (" in line for line in module_lines(graph))
