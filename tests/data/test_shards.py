import random
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.shard_lanes import round_robin
from trueloop.data.shards import LanePosition, ShardEpoch, Shards, position_after, split_round_robin

START = LanePosition(0, 0)


def numbered(lengths, **settings):
    """Shards whose sample i of shard s is (s, i)."""
    return Shards(range(len(lengths)), lambda shard: ((shard, i) for i in range(lengths[shard])), **settings)


def epoch_of(data, epoch=0, *, seed=0, shuffle=True, seed_samples=False):
    return ShardEpoch(data=data, seed=seed, epoch=epoch, shuffle=shuffle, seed_samples=seed_samples)


def lanes_of(of):
    return [[drawn.data for drawn in of.samples(lane, START)] for lane in of.lanes]


some_sizes = st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any)


@given(some_sizes, st.integers(1, 5), st.integers(0, 6), st.integers(-(2**40), 2**70), st.integers(0, 10**6))
def test_lanes_contain_every_sample_once(sizes, interleave, buffer, seed, epoch):
    of = epoch_of(numbered(sizes, interleave=interleave, buffer=buffer), epoch, seed=seed)
    assert len(of.lanes) == min(interleave, len(sizes))
    drawn = [sample for lane in lanes_of(of) for sample in lane]
    assert sorted(drawn) == [(shard, i) for shard, size in enumerate(sizes) for i in range(size)]


@given(some_sizes, st.integers(1, 3), st.integers(0, 6), st.data())
def test_a_lane_can_be_read_from_any_position(sizes, interleave, buffer, data):
    of = epoch_of(numbered(sizes, interleave=interleave, buffer=buffer, sizes=sizes), 3)
    lane = data.draw(st.sampled_from(of.lanes))
    all_samples = list(of.samples(lane, START))
    passed = data.draw(st.integers(0, len(all_samples)))
    place = position_after([sizes[shard] for shard in lane], passed)
    assert list(of.samples(lane, place)) == all_samples[passed:]
    if passed:
        assert list(of.samples(lane, all_samples[passed - 1].after)) == all_samples[passed:]


def test_epochs_and_seeds_differ_in_shards_and_samples():
    data = numbered([20] * 10)
    first, second, other = (lanes_of(epoch_of(data, e, seed=s)) for e, s in ((0, 0), (1, 0), (0, 1)))
    assert first == lanes_of(epoch_of(data, 0))
    assert first != second != other != first
    one_shard = numbered([20])
    assert lanes_of(epoch_of(one_shard, 0)) != lanes_of(epoch_of(one_shard, 1))


def test_without_shuffling_samples_are_in_their_original_order():
    of = epoch_of(numbered([2, 0, 3]), shuffle=False)
    assert of.lanes == [[0, 1, 2]]
    assert lanes_of(of) == [[(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]]


def test_the_buffer_limits_how_early_a_sample_is_read():
    buffer, size = 5, 60
    [lane] = lanes_of(epoch_of(numbered([size], buffer=buffer)))
    order = [i for _, i in lane]
    assert order != sorted(order)
    assert all(i <= place + buffer for place, i in enumerate(order))  # read ahead by the buffer, not further
    [as_it_lies] = lanes_of(epoch_of(numbered([size], buffer=0)))
    assert [i for _, i in as_it_lies] == list(range(size))


def test_a_buffer_as_large_as_the_shard_shuffles_uniformly():
    draws = 3000
    counts = Counter(tuple(lanes_of(epoch_of(numbered([3], buffer=3), 0, seed=seed))[0]) for seed in range(draws))
    assert len(counts) == 6
    assert sum((count - draws / 6) ** 2 / (draws / 6) for count in counts.values()) < 5 + 6 * 10**0.5 + 12  # 6 sigma


def test_only_the_current_shard_is_read():
    read = []

    def reader(shard):
        for i in range(100):
            read.append((shard, i))
            yield i

    data = Shards(range(5), reader, sizes=[100] * 5, buffer=10, interleave=1)
    of = epoch_of(data)
    [lane] = of.lanes
    next(of.samples(lane, LanePosition(3, 20)))
    assert read == [
        (lane[3], i) for i in range(31)
    ]  # of the current shard: the samples up to the position, and one buffer


def test_random_numbers_of_a_sample_depend_only_on_its_position():
    def noisy(_shard):
        for i in range(6):
            yield i, random.random() + float(np.random.rand()) + float(torch.rand(()))

    data = Shards(range(3), noisy, buffer=4, interleave=2)
    of = epoch_of(data, 1, seed_samples=True)
    all_samples = [list(of.samples(lane, START)) for lane in of.lanes]
    torch.manual_seed(123)
    again = [list(of.samples(lane, START)) for lane in of.lanes]
    assert again == all_samples
    assert list(of.samples(of.lanes[0], LanePosition(0, 4))) == all_samples[0][4:]
    drawn = [sample.data for lane in all_samples for sample in lane]
    assert len({value for _, value in drawn}) == len(drawn) == 18
    other = epoch_of(data, 2, seed_samples=True)
    assert not {s.data[1] for lane in other.lanes for s in other.samples(lane, START)} & {value for _, value in drawn}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.data())
def test_split_round_robin_matches_a_simulation(lengths, data):
    turns = [lane for lane, _ in round_robin([iter(range(length)) for length in lengths], 0)]
    passed = data.draw(st.integers(0, len(turns)))
    counts, turn = split_round_robin(lengths, passed)
    assert counts == [turns[:passed].count(lane) for lane in range(len(lengths))]
    rest = [iter(range(length - count)) for length, count in zip(lengths, counts, strict=True)]
    assert [lane for lane, _ in round_robin(rest, turn)] == turns[passed:]


def test_a_position_in_a_huge_epoch_is_computed_directly():
    lengths = [10**14, 3 * 10**14, 7]
    counts, turn = split_round_robin(lengths, 2 * 10**14 + 7)
    assert (counts, turn) == ([10**14, 10**14, 7], 0)
    assert position_after([10**14] * 3, 2 * 10**14) == LanePosition(2, 0)
    assert position_after([10**14] * 3, 2 * 10**14 - 1) == LanePosition(1, 10**14 - 1)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (5, r"Shard 0 \('a\.txt'\) ended after 4 samples, but sizes says 5"),
        (3, "has more than 3 samples, but sizes says 3"),
    ],
)
def test_wrong_sizes_are_refused(said, message):
    data = Shards(["a.txt"], lambda _: range(4), sizes=[said])
    with pytest.raises(InvalidData, match=message):
        lanes_of(epoch_of(data))


def test_an_error_of_the_reader_names_the_sample():
    def reader(_shard):
        yield 1
        raise OSError("torn archive")

    with pytest.raises(OSError, match="torn archive") as caught:
        lanes_of(epoch_of(Shards(["a.tar"], reader, buffer=0)))
    assert caught.value.__notes__ == ["Raised while reading sample 1 of shard 0 ('a.tar')."]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Shards([], iter), InvalidData, r"The shards are \[\]"),
        (lambda: Shards("data/*.tar", iter), InvalidData, "'data/"),
        (lambda: Shards(iter([1]), iter), InvalidData, "iterator"),
        (lambda: Shards([1], "read"), InvalidData, "reader is a str"),
        (lambda: Shards([1], iter, interleave=0), InvalidConfig, "interleave is 0"),
        (lambda: Shards([1], iter, buffer=-1), InvalidConfig, "buffer is -1"),
        (lambda: Shards([1, 2], iter, sizes=[3]), InvalidData, "1 sizes for 2 shards"),
        (lambda: Shards([1, 2], iter, sizes=[3, -1]), InvalidData, "minimum -1"),
        (lambda: Shards([1, 2], iter, sizes=[0, 0]), InvalidData, "sum 0"),
    ],
)
def test_invalid_shards_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_total_size_is_known_if_sizes_are_given():
    assert numbered([2, 3]).size is None
    assert numbered([2, 3], sizes=[2, 3]).size == 5


def test_a_hundred_thousand_shards_are_fast():
    of = epoch_of(Shards(range(10**5), lambda shard: [shard], interleave=8))
    assert sorted(shard for lane in of.lanes for shard in lane) == list(range(10**5))
    first = next(islice(of.samples(of.lanes[0], LanePosition(12_000, 0)), 1))
    assert first.data == of.lanes[0][12_000]
