import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.core.protocols import StatefulPosition
from trueloop.data.ready_batches import IterableSource
from trueloop.data.samplers import OrderSampler, WindowSampler


@given(st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_windows_have_k_batches_and_the_last_may_be_shorter(n, k, known):
    batches = list(range(n)) if known else lambda: iter(range(n))
    source = IterableSource(batches, accumulate=k)
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
def test_at_most_one_batch_is_read_ahead(n, k):
    read = []

    def batches():
        for i in range(n):
            read.append(i)
            yield i

    for micro in IterableSource(batches, accumulate=k).epoch(0):
        ahead = 0 if (micro.data + 1) % k == 0 or micro.data == n - 1 else 1
        assert len(read) == micro.data + 1 + ahead


class EpochRecorder:
    def __init__(self):
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def test_every_shuffling_part_gets_set_epoch_once():
    class RecordingData(EpochRecorder, TensorDataset):
        def __init__(self):
            EpochRecorder.__init__(self)
            TensorDataset.__init__(self, torch.arange(10))

    data = RecordingData()
    sampler = OrderSampler(data, seed=1)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    source = IterableSource(loader)
    orders = [torch.cat([micro.data[0] for micro in source.epoch(epoch)]).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert data.epochs == [0, 1, 0]

    class EpochRecorderList(EpochRecorder, list):
        pass

    own = EpochRecorderList()
    own.append(1)
    list(IterableSource(own).epoch(3))
    assert own.epochs == [3]


def test_batch_samplers_get_set_epoch():
    data = TensorDataset(torch.arange(10))
    source = IterableSource(DataLoader(data, batch_sampler=WindowSampler(data, effective_batch=4)))
    assert source.updates_per_epoch == 3
    orders = [torch.cat([micro.data[0] for micro in source.epoch(epoch)]).tolist() for epoch in (0, 1)]
    assert orders[0] != orders[1]


def test_a_stream_has_no_length():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(7))

    source = IterableSource(DataLoader(Stream(), batch_size=2), accumulate=3)
    assert source.updates_per_epoch is None
    assert [micro.closes_window for micro in source.epoch(0)] == [False, False, True, True]


def test_a_generator_can_be_used_for_one_epoch():
    source = IterableSource(i for i in range(3))
    assert len(list(source.epoch(0))) == 3
    with pytest.raises(InvalidData, match="(?s)generator has no batches left.*only once"):
        list(source.epoch(1))


@pytest.mark.parametrize("empty", [lambda: iter(()), iter(())], ids=["function", "iterator"])
def test_data_without_batches_is_refused_when_read(empty):
    with pytest.raises(InvalidData, match="yields no batches"):
        list(IterableSource(empty).epoch(0))


def test_data_of_length_zero_is_refused_at_construction():
    with pytest.raises(InvalidData, match="list yields no batches"):
        IterableSource([])
    with pytest.raises(InvalidData, match="DataLoader yields no batches"):
        IterableSource(DataLoader(TensorDataset(torch.ones(3)), batch_size=4, drop_last=True))


def test_invalid_settings_are_refused():
    with pytest.raises(InvalidConfig, match="accumulate is 0"):
        IterableSource([1], accumulate=0)
    with pytest.raises(InvalidData, match="int has no batches"):
        IterableSource(3)


class StatefulStream(IterableDataset):
    """A stream that differs each time unless its state is loaded; counts its items."""

    def __init__(self, n):
        self.n, self.at, self.seen, self.given, self.resumes = n, 0, 0, 0, False

    def __iter__(self):
        if not self.resumes:
            self.at = 0
        self.resumes = False
        while self.at < self.n:
            self.at, self.seen, self.given = self.at + 1, self.seen + 1, self.given + 1
            yield self.seen

    def state_dict(self):
        return {"at": self.at, "seen": self.seen}

    def load_state_dict(self, state):
        self.at, self.seen, self.resumes = state["at"], state["seen"], True


def read_epoch(source, epoch, skip=0):
    return [(micro.data, micro.closes_window) for micro in source.epoch(epoch, skip)]


@given(st.integers(1, 12), st.integers(1, 4), st.data())
def test_the_state_of_the_data_is_loaded_instead_of_reading_and_dropping(n, k, data):
    source = IterableSource(StatefulStream(n), accumulate=k)
    assert isinstance(source, StatefulPosition)
    uninterrupted, states = [[], []], []
    for epoch in (0, 1):
        for micro in source.epoch(epoch):
            uninterrupted[epoch].append((micro.data, micro.closes_window))
            if micro.closes_window:
                states.append((epoch, source.position_state()))
        states.append((epoch, source.position_state()))  # as saved at the end of an epoch
    following = read_epoch(source, 2)
    epoch, state = data.draw(st.sampled_from(states))
    walk = StatefulStream(n)
    resumed = IterableSource(walk, accumulate=k)
    resumed.load_position_state(state)
    updates, at_end = state["updates"], data.draw(st.booleans()) and state["updates"] * k >= n
    if at_end and state["ended"]:  # the run had gone on to the next epoch before it was saved
        epoch, updates, left = epoch + 1, 0, [*uninterrupted, following][epoch + 1]
    else:
        left = uninterrupted[epoch][updates * k :]
    assert resumed.position_state() == state
    assert read_epoch(resumed, epoch, updates) == left
    assert walk.given == len(left)  # nothing was read again
    for later_epoch in range(epoch + 1, 3):
        assert read_epoch(resumed, later_epoch) == [*uninterrupted, following][later_epoch]


def test_the_state_does_not_include_the_batch_read_ahead():
    walk = StatefulStream(9)
    source = IterableSource(DataLoader(walk, batch_size=None), accumulate=2)
    states = [source.position_state()["state"]["at"] for micro in source.epoch(0) if micro.closes_window]
    assert states == [2, 4, 6, 8, 9]


def test_data_without_a_state_has_no_position():
    source = IterableSource(DataLoader(StatefulStream(4), num_workers=1, batch_size=2))
    list(source.epoch(0))
    assert source.position_state() is None
    assert IterableSource(StatefulStream(4)).position_state() is None  # not begun
    stateful = IterableSource(StatefulStream(4))
    next(stateful.epoch(0))
    source.load_position_state(stateful.position_state())
    with pytest.raises(InvalidData, match="(?s)a DataLoader cannot restore.*num_workers=0"):
        source.epoch(0, 1)


def test_a_function_that_returns_stateful_data_is_supported():
    source = IterableSource(lambda: StatefulStream(6))
    batches = source.epoch(0)
    next(batches), next(batches)
    reopened = IterableSource(lambda: StatefulStream(6))
    reopened.load_position_state(source.position_state())
    assert [micro.data for micro in reopened.epoch(0, 2)] == [micro.data for micro in batches]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_stateful_loader_is_supported(shuffle, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        return stateful.StatefulDataLoader(list(range(22)), batch_size=2, shuffle=shuffle, num_workers=workers)

    def numbers(source, epoch, skip=0):
        return [micro.data.tolist() for micro in source.epoch(epoch, skip)]

    torch.manual_seed(0)
    source = IterableSource(make(), accumulate=3)
    uninterrupted, states, generators = [[], [], []], [], []
    for epoch in (0, 1, 2):
        for micro in source.epoch(epoch):
            uninterrupted[epoch].append(micro.data.tolist())
            if micro.closes_window:
                states.append((epoch, source.position_state()))
                generators.append(torch.get_rng_state())
        if epoch < 2:
            states.append((epoch + 1, source.position_state()))
            generators.append(torch.get_rng_state())
    for (epoch, state), generator in zip(states, generators, strict=True):
        resumed = IterableSource(make(), accumulate=3)
        resumed.load_position_state(state)
        torch.set_rng_state(generator)
        skip = state["updates"] if state["epoch"] == epoch else 0
        assert numbers(resumed, epoch, skip) == uninterrupted[epoch][skip * 3 :]
        if state["epoch"] != epoch:  # at an epoch's end the generators are those of the uninterrupted run
            for later_epoch in range(epoch + 1, 3):
                assert numbers(resumed, later_epoch) == uninterrupted[later_epoch]
