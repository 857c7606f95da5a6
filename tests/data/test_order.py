import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.order import (
    RandomOrder,
    SequentialOrder,
    WeightedOrder,
    choose_order,
    class_weights,
    order,
)

seeds = st.integers(-(2**70), 2**70)
epochs = st.integers(0, 10**6)


def chi_square_bound(degrees: int) -> float:
    """Mean + 6 standard deviations: a uniform draw exceeds it less than once in a million."""
    return degrees + 6 * math.sqrt(2 * degrees) + 12


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.double().mean()
    return float(((counts - expected) ** 2 / expected).sum())


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5000), seeds, epochs)
@example(1, 0, 0)
@example(2, 0, 0)
@example(3, 0, 0)
@example(4096, 0, 0)
@example(4095, 0, 0)
@example(4097, 0, 0)
def test_random_order_is_a_bijection(n, seed, epoch):
    indices = order(n, seed, epoch).take(0, n)
    assert indices.dtype == torch.int64
    assert torch.equal(indices.sort().values, torch.arange(n))


@pytest.mark.parametrize("n", [2**16 - 1, 2**16, 2**16 + 1, 2**17 + 1, 100_003])
def test_random_order_is_a_bijection_across_chunks(n):
    assert torch.equal(order(n, 1, 2).take(0, n).sort().values, torch.arange(n))


@settings(max_examples=60, deadline=None)
@given(st.integers(10**6, 10**15), seeds, epochs, st.data())
@example(10**12, 0, 0, None)
@example(10**15, 0, 0, None)
@example(2**49 + 1, 0, 0, None)
@example(2**62, 0, 0, None)
def test_huge_orders_stay_in_range_and_never_repeat(n, seed, epoch, data):
    start = n // 3 if data is None else data.draw(st.integers(0, n - 1000))
    block = order(n, seed, epoch).take(start, start + 1000)
    ends = order(n, seed, epoch).at(torch.tensor([0, n - 1]))
    assert 0 <= int(min(block.min(), ends.min())) <= int(max(block.max(), ends.max())) < n
    assert len(block.unique()) == 1000
    assert ends[0] != ends[1]


@given(st.integers(1, 10**15), seeds, epochs, st.data())
def test_any_position_can_be_computed_alone(n, seed, epoch, data):
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start, min(n, start + 50)))
    shuffled = order(n, seed, epoch)
    block = shuffled.take(start, stop)
    positions = torch.randperm(stop - start)
    assert torch.equal(shuffled.at(positions + start), block[positions])


@given(st.integers(50, 10**15), seeds, epochs)
def test_epochs_and_seeds_change_the_order(n, seed, epoch):
    # Two uniform orders agree on 30 given positions with a probability below 1 / 50**20.
    here = order(n, seed, epoch)
    blocks = [o.take(0, 30) for o in (here, here.for_epoch(epoch + 1), order(n, seed + 1, epoch))]
    assert len({tuple(block.tolist()) for block in blocks}) == 3
    assert torch.equal(here.for_epoch(epoch).take(0, 30), blocks[0])


def test_the_order_does_not_change_between_versions():
    # Runs of different versions can be compared, and resumed, only with the same numbers.
    assert order(10, 0, 0).take(0, 10).tolist() == [3, 0, 2, 7, 4, 8, 5, 6, 1, 9]
    assert order(10**15, 7, 3).take(10**12, 10**12 + 3).tolist() == [130456575843818, 78103517458731, 657742701847027]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_permutations_of_few_items_are_equally_likely(n):
    draws = 3000
    counts = Counter(tuple(order(n, seed, 0).take(0, n).tolist()) for seed in range(draws))
    table = torch.tensor([counts[p] for p in permutations(range(n))])
    assert chi_square(table) < chi_square_bound(len(table) - 1)


@pytest.mark.parametrize("n", [10, 100, 257, 300])
def test_positions_and_adjacent_pairs_are_uniform(n):
    draws = 2000
    table = torch.stack([order(n, seed, 5).take(0, n) for seed in range(draws)])
    first = torch.bincount(table[:, 0], minlength=n)
    last = torch.bincount(table[:, -1], minlength=n)
    steps = torch.bincount(((table[:, 1:] - table[:, :-1]) % n).flatten(), minlength=n)
    assert steps[0] == 0
    for counts, cells in ((first, n), (last, n), (steps[1:], n - 1)):
        assert chi_square(counts) < chi_square_bound(cells - 1)


@pytest.mark.parametrize("n", [10**6, 10**12, 2**40 + 1])
def test_a_long_order_is_uniform_in_positions_and_pairs(n):
    places = (order(n, 3, 1).take(0, 10**6 // 2).double() / n * 50).long()  # 50 bins
    pairs = torch.bincount(places[:-1] * 50 + places[1:], minlength=2500)
    assert chi_square(torch.bincount(places, minlength=50)) < chi_square_bound(49)
    assert chi_square(pairs) < chi_square_bound(2499)


def test_epochs_are_independent():
    n = 1000
    table = torch.zeros(n, dtype=torch.long)
    for epoch in range(50):
        here, following = (order(n, 0, e).take(0, n) for e in (epoch, epoch + 1))
        table += torch.bincount((here - following) % n, minlength=n)
    assert chi_square(table) < chi_square_bound(n - 1)


def test_sequential_order_is_the_identity():
    straight = SequentialOrder(size=10**15)
    assert straight.take(10**14, 10**14 + 3).tolist() == [10**14, 10**14 + 1, 10**14 + 2]
    assert straight.at(torch.tensor([5, 1])).tolist() == [5, 1]
    assert straight.for_epoch(4) is straight


def test_weighted_draws_follow_the_weights():
    weights = torch.tensor([1.0, 0.0, 2.0, 5.0, 0.0])
    draws = 80_000
    indices = WeightedOrder.from_weights(weights, draws=draws, seed=3).take(0, draws)
    for index, weight in enumerate(weights.tolist()):
        share = weight / 8
        deviation = math.sqrt(draws * share * (1 - share))
        assert abs(int((indices == index).sum()) - draws * share) <= 5 * deviation  # 5 sigma of the binomial


@given(seeds, epochs, st.integers(1, 500), st.data())
def test_a_weighted_draw_depends_only_on_its_position(seed, epoch, n, data):
    start = data.draw(st.integers(0, 10**12))
    draws = WeightedOrder.from_weights([1.0] * n, draws=10**15, seed=seed).for_epoch(epoch)
    block = draws.take(start, start + 20)
    assert torch.equal(draws.at(torch.tensor([start + 7, start])), block[[7, 0]])
    assert 0 <= int(block.min()) <= int(block.max()) < n


def test_class_weights_draw_every_class_equally_often():
    labels = torch.tensor([0] * 900 + [1] * 100)
    weights = class_weights(labels)
    assert weights[labels == 0].sum().item() == pytest.approx(0.5, rel=1e-12)
    assert weights[labels == 1].sum().item() == pytest.approx(0.5, rel=1e-12)
    draws = labels[WeightedOrder.from_weights(weights, draws=10_000).take(0, 10_000)]
    assert abs(int(draws.sum()) - 5000) <= 5 * math.sqrt(10_000 / 4)  # 5 sigma of the binomial: 250


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60))
def test_class_weights_have_equal_sums_per_class(labels):
    weights = class_weights(labels)
    classes = set(labels)
    for label in classes:
        share = sum(w for w, other in zip(weights.tolist(), labels, strict=True) if other == label)
        assert share == pytest.approx(1 / len(classes), rel=1e-9)


@pytest.mark.parametrize("positions", [[10], [-1], [0, 10]])
@pytest.mark.parametrize(
    "somewhere",
    [order(10, 0, 0), SequentialOrder(size=10), WeightedOrder.from_weights([1.0] * 10)],
    ids=["random", "seq", "weighted"],
)
def test_positions_out_of_range_are_refused(somewhere, positions):
    with pytest.raises(InvalidData, match=r"not within \[0, 10\)"):
        somewhere.at(torch.tensor(positions))
    with pytest.raises(InvalidData, match=r"not within \[0, 10\)"):
        somewhere.take(5, 11)


def test_positions_must_be_one_dimensional_integers():
    with pytest.raises(InvalidData, match="float32"):
        order(10, 0, 0).at(torch.tensor([1.0]))
    assert order(10, 0, 0).at(torch.tensor([], dtype=torch.int64)).tolist() == []
    assert order(10, 0, 0).at(torch.arange(10)[::2]).tolist() == order(10, 0, 0).take(0, 10)[::2].tolist()


@pytest.mark.parametrize("size", [0, -3, 2**62 + 1])
def test_invalid_sizes_are_refused(size):
    with pytest.raises(InvalidData, match=str(size)):
        RandomOrder(size=size)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -2.0], "sample 1 is -2"),
        ([math.nan], "sample 0 is nan"),
        ([0.0, 0.0], "sum of the weights is 0"),
        ([], "0 samples"),
    ],
)
def test_invalid_weights_are_refused(weights, message):
    with pytest.raises(InvalidData, match=message):
        WeightedOrder.from_weights(weights)


def test_weights_and_labels_need_one_entry_per_sample():
    with pytest.raises(InvalidData, match="shape"):
        WeightedOrder.from_weights(torch.ones(2, 2))
    with pytest.raises(InvalidData, match="shape"):
        class_weights([])
    with pytest.raises(InvalidData, match="3 weights for 4 samples"):
        choose_order([1.0, 1.0, 1.0], 4, 0)


def test_an_order_is_given_by_name_by_weights_or_directly():
    assert choose_order("random", 5, 9) == RandomOrder(size=5, seed=9)
    assert choose_order("sequential", 5, 9) == SequentialOrder(size=5)
    for weights in ([0.0, 1.0], torch.tensor([0.0, 1.0]), np.array([0.0, 1.0])):
        assert choose_order(weights, 2, 9).take(0, 2).tolist() == [1, 1]
    custom = order(3, 0, 0)
    assert choose_order(custom, 5, 9) is custom
    with pytest.raises(InvalidConfig, match="shuffled"):
        choose_order("shuffled", 5, 9)
    with pytest.raises(InvalidData, match="0 samples"):
        choose_order("random", 0, 9)
