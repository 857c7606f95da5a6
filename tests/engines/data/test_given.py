import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trueloop.engines.data.given import GivenBatches
from trueloop.engines.data.samplers import OrderSampler, WindowSampler
from trueloop.ground.errors import InvalidConfig, InvalidData


@given(st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_windows_are_k_batches_and_the_last_may_be_short(n, k, known):
    batches = list(range(n)) if known else lambda: iter(range(n))
    source = GivenBatches(batches, accumulate=k)
    drawn = list(source.epoch(0))
    assert [micro.data for micro in drawn] == list(range(n))
    assert [micro.closes_window for micro in drawn] == [(i + 1) % k == 0 or i == n - 1 for i in range(n)]
    assert {micro.indices for micro in drawn} == {None}
    windows = sum(micro.closes_window for micro in drawn)
    assert source.updates_per_epoch == (windows if known else None)
    for skip in range(windows + 1):
        assert list(source.epoch(0, skip)) == drawn[min(skip * k, n) :]
    with pytest.raises(InvalidData, match=f"{windows + 1} updates cannot be skipped"):
        list(source.epoch(0, windows + 1))


@given(st.integers(1, 20), st.integers(1, 5))
def test_at_most_one_batch_is_read_ahead_and_none_of_a_closed_window(n, k):
    read = []

    def batches():
        for i in range(n):
            read.append(i)
            yield i

    for micro in GivenBatches(batches, accumulate=k).epoch(0):
        ahead = 0 if (micro.data + 1) % k == 0 or micro.data == n - 1 else 1
        assert len(read) == micro.data + 1 + ahead


class Heard:
    def __init__(self):
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def test_whatever_shuffles_is_told_the_epoch_once():
    class HeardData(Heard, TensorDataset):
        def __init__(self):
            Heard.__init__(self)
            TensorDataset.__init__(self, torch.arange(10))

    data = HeardData()
    sampler = OrderSampler(data, seed=1)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    source = GivenBatches(loader)
    orders = [torch.cat([micro.data[0] for micro in source.epoch(epoch)]).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert data.epochs == [0, 1, 0]

    class HeardList(Heard, list):
        pass

    own = HeardList()
    own.append(1)
    list(GivenBatches(own).epoch(3))
    assert own.epochs == [3]


def test_batch_samplers_are_told_the_epoch():
    data = TensorDataset(torch.arange(10))
    source = GivenBatches(DataLoader(data, batch_sampler=WindowSampler(data, effective_batch=4)))
    assert source.updates_per_epoch == 3
    orders = [torch.cat([micro.data[0] for micro in source.epoch(epoch)]).tolist() for epoch in (0, 1)]
    assert orders[0] != orders[1]


def test_a_stream_has_no_length():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(7))

    source = GivenBatches(DataLoader(Stream(), batch_size=2), accumulate=3)
    assert source.updates_per_epoch is None
    assert [micro.closes_window for micro in source.epoch(0)] == [False, False, True, True]


def test_a_generator_lasts_for_one_epoch():
    source = GivenBatches(i for i in range(3))
    assert len(list(source.epoch(0))) == 3
    with pytest.raises(InvalidData, match="(?s)generator has no batches left.*once only"):
        list(source.epoch(1))


@pytest.mark.parametrize("empty", [lambda: iter(()), iter(())], ids=["function", "iterator"])
def test_no_batches_at_all_are_refused_when_drawn(empty):
    with pytest.raises(InvalidData, match="yields no batches"):
        list(GivenBatches(empty).epoch(0))


def test_no_batches_at_all_are_refused_at_once_where_the_length_says_so():
    with pytest.raises(InvalidData, match="list yields no batches"):
        GivenBatches([])
    with pytest.raises(InvalidData, match="DataLoader yields no batches"):
        GivenBatches(DataLoader(TensorDataset(torch.ones(3)), batch_size=4, drop_last=True))


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(InvalidConfig, match="accumulate is 0"):
        GivenBatches([1], accumulate=0)
    with pytest.raises(InvalidData, match="int has no batches"):
        GivenBatches(3)
