"""Memory that blocks save, in bytes counted by hand; the choice of blocks; and that the model is restored."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from trueloop.autograd.block_costs import BlockCost, choose_blocks, measure_blocks
from trueloop.core.errors import InvalidConfig


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(self.norm(self.up(x)).exp()))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(8), Block(16))


def test_only_memory_inside_the_block_is_counted():
    network, x = model(), torch.randn(5, 4)
    small, large = measure_blocks(network, dict(network.named_children()), lambda: network(x).sum())
    # In each block: the input of BatchNorm, its mean and deviation, exp's result, dropout's mask (a byte or a float
    # each) and result. The block's inputs and outputs are not freed.
    for cost, width in ((small, 8), (large, 16)):
        saved_b = 4 * 5 * width
        assert cost.saves_b >= 3 * saved_b + 2 * 4 * width + 5 * width
        assert cost.saves_b <= 4 * saved_b + 2 * 4 * width + 5 * width
    assert (small.name, large.name) == ("0", "1")
    assert small.forward_s > 0


def test_a_block_that_saves_only_inputs_and_outputs_saves_no_memory():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    costs = measure_blocks(network, dict(network.named_children()), lambda: network(torch.randn(5, 4)).sum())
    assert [cost.saves_b for cost in costs] == [0, 0]


def test_a_block_that_is_called_twice_counts_twice():
    network, x = model(), torch.randn(5, 4)
    blocks = {"0": network[0]}
    [once] = measure_blocks(network, blocks, lambda: network[0](x).sum())
    [twice] = measure_blocks(network, blocks, lambda: network[0](network[0](x)).sum())
    assert twice.saves_b == 2 * once.saves_b


def test_model_and_generator_are_restored():
    network, x = model(), torch.randn(5, 4)
    before, generator = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    measure_blocks(network, dict(network.named_children()), lambda: network(x).sum())
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_block_that_is_not_called_is_an_error():
    network = model()
    with pytest.raises(InvalidConfig, match="The block 1 is not called"):
        measure_blocks(network, dict(network.named_children()), lambda: network[0](torch.randn(5, 4)).sum())


COSTS = tuple(
    BlockCost(name=name, saves_b=saves_b, forward_s=forward_s)
    for name, saves_b, forward_s in (("a", 100, 1.0), ("b", 300, 1.0), ("c", 200, 4.0), ("d", 50, 0.1))
)


@pytest.mark.parametrize(
    ("save_b", "expected"),
    [
        (0, ()),
        (50, ("d",)),
        (300, ("b",)),
        (301, ("b", "d")),
        (350, ("b", "d")),
        (400, ("a", "b")),
        (650, (*"abcd",)),
    ],
)
def test_the_most_efficient_blocks_are_chosen_and_no_more_than_needed(save_b: int, expected: tuple[str, ...]):
    chosen = choose_blocks(COSTS, save_b)
    sizes = {cost.name: cost.saves_b for cost in COSTS}
    assert chosen == expected
    assert sum(sizes[name] for name in chosen) >= save_b
    assert all(sum(sizes[name] for name in chosen) - sizes[each] < save_b for each in chosen)


def test_more_memory_than_all_blocks_save_is_refused():
    with pytest.raises(InvalidConfig, match="All 4 blocks together save 650 bytes, but save_b is 1000 bytes"):
        choose_blocks(COSTS, 1000)
