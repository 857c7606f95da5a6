"""The graph of a recipe's loss is the graph of training, with the recipe's frozen and recomputed layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from trueloop import Parts, Recipe, TrainConfig
from trueloop.app.graph import graph_of
from trueloop.core.errors import InvalidModel


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh().exp()


@dataclass(frozen=True)
class Options:
    width: int = 4


def recipe(objective: Any = None, **settings: Any) -> Recipe:
    def assemble(_: Options) -> Parts:
        model = nn.Sequential(nn.Sequential(Block(), Block()), nn.Linear(4, 3))
        data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 3)
        return Parts(model=model, objective=objective or nn.CrossEntropyLoss(), train=data)

    config = TrainConfig(effective_batch=10, device="cpu", **settings)
    return Recipe(name="small", summary="Small.", train=config, options=Options(), assemble=assemble)


def test_the_graph_covers_one_micro_batch_with_named_tensors():
    graph = graph_of(replace(recipe(), train=replace(recipe().train, micro_batch=5)))
    [inputs] = [memory for memory in graph.memories if memory.owner == "batch[0]"]
    assert inputs.size_b == 5 * 4 * 4
    assert graph.nodes[0].tensor_name == "loss"
    assert "output" in {node.tensor_name for node in graph.nodes}
    assert graph.unreachable == ()
    assert {"0.0", "0.1", "1"} & {node.module.removesuffix(".linear") for node in graph.nodes} == {"0.0", "0.1", "1"}


def test_freezing_and_recomputation_change_the_graph():
    plain, frozen, recomputed = (graph_of(each) for each in (recipe(), recipe(freeze=("0.*",)), recipe(recompute=True)))
    assert len(frozen.frozen) == 4
    assert len(frozen.nodes) < len(plain.nodes)
    assert (plain.hooked, plain.unreachable) == (0, ())
    assert recomputed.hooked > 0
    assert recomputed.graph_only_b < plain.graph_only_b


def test_a_loss_without_a_graph_is_refused():
    with pytest.raises(InvalidModel, match="does not depend on any trainable parameter"):
        graph_of(recipe(lambda model, batch: model(batch[0]).detach().mean()))
