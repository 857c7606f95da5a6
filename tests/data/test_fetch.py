import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from trueloop.core.errors import InvalidData
from trueloop.data.collate import pad_sequences
from trueloop.data.datasets import TensorData
from trueloop.data.fetch import FetchBatch

INDICES = torch.tensor([3, 1])


class Noise:
    """A sample is three random numbers, one from each generator."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([random.random(), float(np.random.rand()), float(torch.rand(()))])


class ReadsBatches(Noise):
    """A dataset that reads a batch in one call."""

    def __getitems__(self, indices):
        assert type(indices) is list
        return {"x": indices, "noise": torch.rand(len(indices))}


def test_tensors_are_indexed_directly():
    x, y = torch.randn(5, 2), torch.arange(5)
    for data in (TensorData(x, y), TensorDataset(x, y)):
        batch = FetchBatch(data, None, seed=0, seed_samples=True)(0, INDICES)
        assert type(batch) is list
        assert torch.equal(batch[0], x[[3, 1]])
        assert batch[1].tolist() == [3, 1]
        assert FetchBatch(data, list, seed=0, seed_samples=True)(0, INDICES)[0][1] == 3


def test_a_dataset_with_getitems_is_read_with_one_call():
    batch = FetchBatch(ReadsBatches(), None, seed=0, seed_samples=False)(0, INDICES)
    assert batch["x"].tolist() == [3, 1]


def test_random_numbers_of_a_sample_depend_only_on_seed_epoch_and_index():
    def noise(seed, epoch, *indices):
        return FetchBatch(Noise(), None, seed=seed, seed_samples=True)(epoch, torch.tensor(indices))

    here = noise(0, 0, 3, 1)
    torch.rand(7)
    assert torch.equal(noise(0, 0, 1, 3), here[[1, 0]])
    assert torch.equal(noise(0, 0, 1)[0], here[1])
    different = torch.stack([here[0], here[1], noise(1, 0, 3)[0], noise(0, 1, 3)[0]])
    assert len(different.flatten().unique()) == 12


def test_getitems_and_collate_are_seeded_by_the_first_index():
    def noisy_collate(samples):
        return torch.rand(2)

    for data, collate in ((ReadsBatches(), None), (Noise(), noisy_collate)):
        fetch = FetchBatch(data, collate, seed=0, seed_samples=True)
        first, repeated = fetch(0, INDICES), fetch(0, INDICES)
        assert str(first) == str(repeated)
        assert str(first) != str(fetch(1, INDICES))


@pytest.mark.parametrize("seed_samples", [True, False])
def test_the_global_generators_change_only_without_seeding(seed_samples):
    before = torch.get_rng_state()
    FetchBatch(Noise(), None, seed=0, seed_samples=seed_samples)(0, INDICES)
    assert torch.equal(torch.get_rng_state(), before) == seed_samples


def test_samples_that_cannot_be_collated_are_listed_by_index():
    fetch = FetchBatch([torch.ones(n) for n in (1, 2, 3, 4)], None, seed=0, seed_samples=True)
    with pytest.raises(
        InvalidData, match=r"(?s)Sample 1 of the batch is float32\[2\].*these samples of the dataset: \[3, 1\]"
    ):
        fetch(0, INDICES)
    error = fetch.__getitems__((0, [3, 1]))
    assert isinstance(error, InvalidData)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_custom_collate_receives_the_samples():
    fetch = FetchBatch([torch.ones(n) for n in (1, 2, 3, 4)], pad_sequences, seed=0, seed_samples=False)
    assert fetch(0, INDICES)[1].sum(1).tolist() == [4, 2]
