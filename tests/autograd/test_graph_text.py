"""The page of a graph: sums that add up, holders by name, and a tree in which every node is drawn once."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from trueloop.autograd.graph import inspect, record_modules
from trueloop.autograd.graph_text import by_module, largest, overview, tree


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.left = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.inner(x).relu())


def looked() -> tuple[Residual, Tensor]:
    torch.manual_seed(0)
    model, start = Residual(), nn.Parameter(torch.randn(3, 4))
    with record_modules(model):
        loss = model(start * 2).square().sum()
    return model, loss


def test_the_overview_says_what_is_not_reached():
    model, loss = looked()
    text = "\n".join(overview(inspect(loss, model)))
    assert "never reached by this loss: left.weight, left.bias" in text
    assert "freed" not in text
    loss.backward()
    assert "backward has already run" in "\n".join(overview(inspect(loss, model)))
    reached = "\n".join(overview(inspect(looked()[1], nn.Linear(1, 1).requires_grad_(False))))
    assert "every parameter that requires a gradient is reached" in reached
    assert "frozen: weight, bias" in reached


def test_every_node_is_drawn_once_and_otherwise_pointed_to():
    model, loss = looked()
    graph = inspect(loss, model)
    lines = list(tree(graph))
    drawn = [int(match[1]) for line in lines if (match := re.match(r"(?:\| )*(\d+) ", line))]
    pointed = [int(match[1]) for line in lines if (match := re.match(r"(?:\| )*-> (\d+) ", line))]
    assert sorted(drawn) == list(range(len(graph.nodes)))
    assert len(drawn) + len(pointed) == len(graph.edges) + 1
    for place in pointed:  # below where it is pointed to
        assert lines.index(next(line for line in lines if re.match(rf"(?:\| )*-> {place} ", line))) < lines.index(
            next(line for line in lines if re.match(rf"(?:\| )*{place} ", line))
        )


def test_the_longest_way_stays_at_the_margin():
    graph = inspect(looked()[1])
    margin = [line for line in tree(graph) if re.match(r"\d", line)]
    assert [line.split()[1] for line in margin][:5] == [
        *("SumBackward0", "PowBackward0", "AddBackward0", "AddmmBackward0", "ReluBackward0")
    ]
    assert margin[-1].endswith("a leaf without a name")


def test_a_long_chain_needs_no_recursion():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y + 1
    assert sum(1 for _ in tree(inspect(y))) == 3001


def test_the_largest_are_told_with_all_who_hold_them():
    model, loss = looked()
    graph = inspect(loss, model)
    text = "\n".join(largest(graph))
    assert re.search(r"AddmmBackward0 \d+ \(mat1\), ReluBackward0 \d+ \(result\)", text)
    assert "inner.weight, which stays" in text


def test_modules_add_up_to_what_the_graph_alone_keeps():
    model, loss = looked()
    graph = inspect(loss, model)
    sizes = [int(match[1]) for line in by_module(graph) if (match := re.match(r" *(\d+) byte", line))]
    assert sum(sizes) == graph.alone_b
    assert any("inner (" in line for line in by_module(graph))
