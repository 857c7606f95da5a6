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


class Many(Noise):
    """Reads in one go, as columns."""

    def __getitems__(self, indices):
        assert type(indices) is list
        return {"x": indices, "noise": torch.rand(len(indices))}


def test_tensors_are_copied_at_once_with_the_batch_torch_would_make():
    x, y = torch.randn(5, 2), torch.arange(5)
    for data in (TensorData(x, y), TensorDataset(x, y)):
        batch = FetchBatch(data, None, seed=0, seed_samples=True)(0, INDICES)
        assert type(batch) is list
        assert torch.equal(batch[0], x[[3, 1]])
        assert batch[1].tolist() == [3, 1]
        assert FetchBatch(data, list, seed=0, seed_samples=True)(0, INDICES)[0][1] == 3


def test_a_dataset_that_reads_many_is_asked_once():
    batch = FetchBatch(Many(), None, seed=0, seed_samples=False)(0, INDICES)
    assert batch["x"].tolist() == [3, 1]


def test_the_noise_of_a_sample_depends_on_seed_epoch_and_index_only():
    def noise(seed, epoch, *indices):
        return FetchBatch(Noise(), None, seed=seed, seed_samples=True)(epoch, torch.tensor(indices))

    here = noise(0, 0, 3, 1)
    torch.rand(7)
    assert torch.equal(noise(0, 0, 1, 3), here[[1, 0]])
    assert torch.equal(noise(0, 0, 1)[0], here[1])
    different = torch.stack([here[0], here[1], noise(1, 0, 3)[0], noise(0, 1, 3)[0]])
    assert len(different.flatten().unique()) == 12


def test_reading_many_and_collating_are_seeded_by_their_first_sample():
    def noisy_collate(samples):
        return torch.rand(2)

    for data, collate in ((Many(), None), (Noise(), noisy_collate)):
        fetch = FetchBatch(data, collate, seed=0, seed_samples=True)
        first, again = fetch(0, INDICES), fetch(0, INDICES)
        assert str(first) == str(again)
        assert str(first) != str(fetch(1, INDICES))


@pytest.mark.parametrize("seed_samples", [True, False])
def test_the_global_generators_are_left_alone_unless_asked(seed_samples):
    before = torch.get_rng_state()
    FetchBatch(Noise(), None, seed=0, seed_samples=seed_samples)(0, INDICES)
    assert torch.equal(torch.get_rng_state(), before) == seed_samples


def test_samples_that_make_no_batch_are_named_by_their_place_in_the_dataset():
    fetch = FetchBatch([torch.ones(n) for n in (1, 2, 3, 4)], None, seed=0, seed_samples=True)
    with pytest.raises(
        InvalidData, match=r"(?s)Sample 1 of the batch is float32\[2\].*these samples of the dataset: \[3, 1\]"
    ):
        fetch(0, INDICES)
    answer = fetch.__getitems__((0, [3, 1]))
    assert isinstance(answer, InvalidData)
    assert str(pickle.loads(pickle.dumps(answer))) == str(answer)


def test_a_collate_of_ones_own_gets_the_samples():
    fetch = FetchBatch([torch.ones(n) for n in (1, 2, 3, 4)], pad_sequences, seed=0, seed_samples=False)
    assert fetch(0, INDICES)[1].sum(1).tolist() == [4, 2]
