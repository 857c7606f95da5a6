"""What blocks keep, in bytes counted by hand; which are chosen; and a model that is left as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from trueloop.autograd.block_costs import BlockCost, choose, measure_blocks
from trueloop.core.errors import InvalidConfig


class Block(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, wide), nn.BatchNorm1d(wide), nn.Linear(wide, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(self.norm(self.up(x)).exp()))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(8), Block(16))


def test_the_bytes_are_those_of_what_lies_within():
    made, x = model(), torch.randn(5, 4)
    small, large = measure_blocks(made, dict(made.named_children()), lambda: made(x).sum())
    # In each block: what BatchNorm is given, its mean and deviation, exp's result, dropout's mask (a byte or a float
    # each) and result. The inputs of the block and its outputs stay.
    for cost, wide in ((small, 8), (large, 16)):
        kept = 4 * 5 * wide
        assert cost.spares_b >= 3 * kept + 2 * 4 * wide + 5 * wide
        assert cost.spares_b <= 4 * kept + 2 * 4 * wide + 5 * wide
    assert (small.name, large.name) == ("0", "1")
    assert small.forward_s > 0


def test_a_block_of_inputs_and_outputs_spares_nothing():
    made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    costs = measure_blocks(made, dict(made.named_children()), lambda: made(torch.randn(5, 4)).sum())
    assert [cost.spares_b for cost in costs] == [0, 0]


def test_a_block_that_is_called_twice_keeps_twice():
    made, x = model(), torch.randn(5, 4)
    blocks = {"0": made[0]}
    [once] = measure_blocks(made, blocks, lambda: made[0](x).sum())
    [twice] = measure_blocks(made, blocks, lambda: made[0](made[0](x)).sum())
    assert twice.spares_b == 2 * once.spares_b


def test_the_model_and_the_generator_are_as_before():
    made, x = model(), torch.randn(5, 4)
    before, generator = copy.deepcopy(made.state_dict()), torch.get_rng_state()
    measure_blocks(made, dict(made.named_children()), lambda: made(x).sum())
    torch.testing.assert_close(made.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in made.modules())
    assert all(parameter.grad is None for parameter in made.parameters())


def test_a_block_that_is_not_called_is_named():
    made = model()
    with pytest.raises(InvalidConfig, match="The block 1 is not called"):
        measure_blocks(made, dict(made.named_children()), lambda: made[0](torch.randn(5, 4)).sum())


COSTS = tuple(
    BlockCost(name=name, spares_b=spares_b, forward_s=forward_s)
    for name, spares_b, forward_s in (("a", 100, 1.0), ("b", 300, 1.0), ("c", 200, 4.0), ("d", 50, 0.1))
)


@pytest.mark.parametrize(
    ("spare_b", "expected"),
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
def test_the_blocks_that_are_most_worth_it_are_chosen_and_none_too_many(spare_b: int, expected: tuple[str, ...]):
    chosen = choose(COSTS, spare_b)
    sizes = {cost.name: cost.spares_b for cost in COSTS}
    assert chosen == expected
    assert sum(sizes[name] for name in chosen) >= spare_b
    assert all(sum(sizes[name] for name in chosen) - sizes[each] < spare_b for each in chosen)


def test_more_than_there_is_cannot_be_spared():
    with pytest.raises(InvalidConfig, match="All 4 blocks together save 650 bytes, but spare_b asks for 1000 bytes"):
        choose(COSTS, 1000)
