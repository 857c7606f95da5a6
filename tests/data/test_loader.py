import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.core.protocols import BatchSource, is_padding
from trueloop.data.collate import pad_sequences
from trueloop.data.datasets import TensorData, split
from trueloop.data.loader import Loader
from trueloop.data.order import class_weights, order
from trueloop.data.samplers import OrderSampler


class NoisySquares:
    """A map-style dataset that counts its reads and adds noise from every generator."""

    def __init__(self, n):
        self.n, self.read = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read.append(index)
        return torch.tensor([index, index**2]), random.random() + float(np.random.rand()) + float(torch.rand(()))


class RowDataset:
    """A stand-in for a Hugging Face dataset: rows of Python values; ``__getitems__`` gives a list of them."""

    def __init__(self, n):
        self.columns = {
            "x": [[i, i + 1] for i in range(n)],
            "label": [i % 2 for i in range(n)],
            "text": [str(i) for i in range(n)],
        }

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, key):
        if isinstance(key, list):
            return {name: [column[i] for i in key] for name, column in self.columns.items()}
        return {name: column[key] for name, column in self.columns.items()}

    def __getitems__(self, keys):
        columns = self[keys]
        return [{name: column[i] for name, column in columns.items()} for i in range(len(keys))]


def micro_batches_as_text(source, epoch, skip_updates=0):
    return [(str(micro.data), micro.closes_window, list(micro.indices)) for micro in source.epoch(epoch, skip_updates)]


def test_a_loader_is_a_batch_source():
    source: BatchSource = Loader(TensorData(torch.arange(10)), effective_batch=4)
    assert source.updates_per_epoch == 3


def test_batches_follow_the_order_and_have_their_indices():
    x = torch.randn(10, 3)
    loader = Loader(TensorData(x, torch.arange(10)), effective_batch=4, micro_batch=3, seed=5)
    draws = list(loader.epoch(2))
    assert [len(micro.indices) for micro in draws] == [3, 1, 3, 1, 2]
    assert [micro.closes_window for micro in draws] == [False, True, False, True, True]
    assert [i for micro in draws for i in micro.indices] == order(10, 5, 2).take(0, 10).tolist()
    for micro in draws:
        assert type(micro.indices) is list
        assert micro.data[1].tolist() == micro.indices
        assert torch.equal(micro.data[0], x[micro.indices])
    assert (loader.micro_batches_per_epoch, loader.updates_per_epoch, loader.examples_per_epoch) == (5, 3, 10)


def test_batches_equal_those_of_a_plain_loader():
    data = TensorDataset(torch.randn(20, 3), torch.arange(20))
    for dataset in (data, [data[i] for i in range(20)]):
        actual = [micro.data for micro in Loader(dataset, effective_batch=8, seed=3).epoch(0)]
        reference = DataLoader(data, batch_size=8, sampler=OrderSampler(20, seed=3))
        for one, other in zip(actual, reference, strict=True):
            assert type(one) is type(other)
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "make", [NoisySquares, RowDataset, lambda n: TensorData(torch.arange(n))], ids=["squares", "rows", "tensors"]
)
def test_the_number_of_workers_does_not_change_the_batches(make):
    loaders = [Loader(make(23), effective_batch=8, micro_batch=3, seed=1, workers=w) for w in (0, 1, 2)]
    for epoch, skip in ((0, 0), (3, 1), (1, 0), (1, 3)):
        expected = micro_batches_as_text(loaders[0], epoch, skip)
        assert len(expected) == len(micro_batches_as_text(loaders[0], epoch)) - 3 * min(skip, 2) - 3 * (skip == 3)
        assert micro_batches_as_text(loaders[1], epoch, skip) == expected
        assert micro_batches_as_text(loaders[2], epoch, skip) == expected


def test_an_unfinished_epoch_does_not_change_the_next():
    loader = Loader(NoisySquares(40), effective_batch=4, workers=1)
    expected = micro_batches_as_text(Loader(NoisySquares(40), effective_batch=4), 1)
    half = loader.epoch(0)
    next(half)
    assert micro_batches_as_text(loader, 1) == expected
    with pytest.raises(InvalidConfig, match="Another epoch of this loader was started"):
        next(half)


def test_epochs_without_workers_may_overlap():
    loader = Loader(NoisySquares(12), effective_batch=4)
    expected = [micro_batches_as_text(loader, 0), micro_batches_as_text(loader, 1)]
    interleaved = list(zip(loader.epoch(0), loader.epoch(1), strict=True))
    assert [
        [(str(m.data), m.closes_window, m.indices) for m in ms] for ms in zip(*interleaved, strict=True)
    ] == expected


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [NoisySquares, RowDataset], ids=["squares", "rows"])
def test_the_global_generators_do_not_change(make, workers):
    def state():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    loader = Loader(make(12), effective_batch=4, workers=workers)
    before = state()
    for epoch in (0, 1):
        for _ in loader.epoch(epoch):
            assert state() == before
    assert state() == before


def test_skipped_samples_are_not_read():
    data = NoisySquares(20)
    loader = Loader(data, effective_batch=6, micro_batch=2)
    uninterrupted = micro_batches_as_text(loader, 4)
    data.read.clear()
    assert micro_batches_as_text(loader, 4, 2) == uninterrupted[6:]
    assert len(data.read) == 8
    assert micro_batches_as_text(loader, 4, 4) == []
    with pytest.raises(InvalidData, match="5 updates cannot be skipped"):
        loader.epoch(4, 5)


@given(n=st.integers(1, 100), effective=st.integers(1, 40), processes=st.integers(1, 5), data=st.data())
def test_processes_share_every_window(n, effective, processes, data):
    micro = data.draw(st.integers(1, effective))
    dataset = TensorData(torch.arange(n))
    single = Loader(dataset, effective_batch=effective)
    ranks = [
        Loader(dataset, effective_batch=effective, micro_batch=micro, processes=processes, rank=rank)
        for rank in range(processes)
    ]
    windows = [[]]
    for parts in zip(*(loader.epoch(1) for loader in ranks), strict=True):
        assert len({part.closes_window for part in parts}) == 1
        for part in parts:
            assert part.data[0].tolist() == (list(part.indices) or parts[0].data[0][:1].tolist())
            windows[-1] += part.indices
        windows += [[]] if parts[0].closes_window else []
    assert windows.pop() == []
    assert [sorted(window) for window in windows] == [sorted(micro.indices) for micro in single.epoch(1)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_process_without_samples_gets_padding(workers):
    loader = Loader(
        NoisySquares(5), effective_batch=4, micro_batch=2, processes=2, rank=1, order="sequential", workers=workers
    )
    draws = list(loader.epoch(0))
    assert [list(micro.indices) for micro in draws] == [[1, 3], []]
    assert torch.as_tensor(draws[1].data[0]).flatten()[0] == 4  # of the other process's share, and nothing of it counts
    assert is_padding(draws[1])
    assert draws[1].closes_window


def test_rows_of_numbers_become_tensors():
    micro = next(Loader(RowDataset(6), effective_batch=3, order="sequential").epoch(0))
    assert micro.data["x"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert micro.data["label"].tolist() == [0, 1, 0]
    assert micro.data["text"] == ["0", "1", "2"]


def test_hugging_face_datasets_work_directly():
    datasets = pytest.importorskip("datasets")
    rows = RowDataset(6)
    data = datasets.Dataset.from_dict(rows.columns)
    assert micro_batches_as_text(Loader(data, effective_batch=4), 0) == micro_batches_as_text(
        Loader(rows, effective_batch=4), 0
    )
    micro = next(Loader(data.with_format("torch"), effective_batch=3, order="sequential").epoch(0))
    assert micro.data["x"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_class_weights_draw_classes_equally_often():
    labels = torch.tensor([0] * 900 + [1] * 100)
    loader = Loader(TensorData(labels), effective_batch=100, order=class_weights(labels))
    draws = torch.cat([micro.data[0] for epoch in range(10) for micro in loader.epoch(epoch)])
    assert len(draws) == 10_000
    assert abs(int(draws.sum()) - 5000) <= 5 * math.sqrt(10_000 / 4)  # 5 sigma of the binomial: 250


def test_a_split_with_a_custom_collate():
    sequences = [torch.full((length,), length) for length in range(1, 21)]
    train, held_out = split(sequences, [0.8, 0.2])
    received = set()
    for part in (train, held_out):
        for micro in Loader(part, effective_batch=4, collate=pad_sequences).epoch(0):
            padded, mask = micro.data
            assert mask.sum(1).tolist() == padded.max(1).values.tolist()
            received |= set(padded.max(1).values.tolist())
    assert received == set(range(1, 21))


def test_drop_last_drops_the_partial_micro_batch():
    loader = Loader(TensorData(torch.arange(100)), effective_batch=64, micro_batch=16, drop_last=True)
    assert [len(micro.indices) for micro in loader.epoch(0)] == [16] * 6
    assert loader.updates_per_epoch == 2
    assert loader.examples_per_epoch == 96


def test_fast_data_gets_no_workers():
    for data in (TensorData(torch.arange(10)), NoisySquares(10)):
        loader = Loader(data, effective_batch=4, workers=None)
        expected = micro_batches_as_text(
            Loader(NoisySquares(10) if isinstance(data, NoisySquares) else data, effective_batch=4), 0
        )
        assert micro_batches_as_text(loader, 0) == expected
        assert loader.workers == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_cannot_be_collated_give_a_clear_message(workers):
    ragged = [torch.ones(1 + i % 2) for i in range(4)]
    loader = Loader(ragged, effective_batch=4, order="sequential", workers=workers)
    with pytest.raises(InvalidData) as caught:
        list(loader.epoch(0))
    assert str(caught.value).splitlines()[0] == "Sample 1 of the batch is float32[2]; sample 0 is float32[1]."
    assert "[0, 1, 2, 3]" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"micro_batch": 9}, "micro_batch is 9"),
        ({"rank": 1}, "rank is 1"),
        ({"order": "sorted"}, "sorted"),
    ],
)
def test_invalid_settings_are_refused(options, message):
    with pytest.raises(InvalidConfig, match=message):
        Loader(TensorData(torch.arange(10)), effective_batch=4, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to pin for")
def test_pin_memory_without_a_gpu_is_refused():
    with pytest.raises(InvalidConfig, match="pin_memory"):
        Loader(TensorData(torch.arange(10)), effective_batch=4, pin_memory=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="nothing to pin for")
@pytest.mark.parametrize("workers", [0, 1])
def test_pinned_batches_are_pinned(workers):
    loader = Loader(TensorData(torch.arange(10)), effective_batch=4, pin_memory=True, workers=workers)
    assert all(micro.data[0].is_pinned() for micro in loader.epoch(0))


def test_data_without_a_length_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(InvalidData, match="0 samples"):
        Loader([], effective_batch=4)
    with pytest.raises(InvalidData, match="(?s)Stream has no length.*IterableSource"):
        Loader(Stream(), effective_batch=4)
