"""The samples that loaders can return, found without reading a sample."""

import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from trueloop.tracing.trackers.loader_samples import dataset_parts, in_memory_tables

TABLE = TensorDataset(torch.randn(20, 9), torch.arange(20))


class Untouchable(Dataset):
    """A dataset that raises an error when a sample is read."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        raise AssertionError


def indices(loader):
    (part,) = dataset_parts(loader)
    return part.base, None if part.indices is None else part.indices.tolist()


def test_subsets_wrappers_and_samplers_lead_to_one_dataset():
    chain = Untouchable(Subset(Subset(TABLE, range(10, 20)), [0, 2, -1]))
    assert indices(DataLoader(chain)) == (TABLE, [10, 12, 19])
    assert indices(DataLoader(TABLE, sampler=SubsetRandomSampler([3, 3, 1]))) == (TABLE, [1, 3])
    assert indices(DataLoader(Subset(TABLE, [5, 6, 7]), sampler=SubsetRandomSampler([2, 0]))) == (TABLE, [5, 7])
    assert indices(DataLoader(TABLE, batch_sampler=BatchSampler(SequentialSampler(TABLE), 2, False))) == (TABLE, None)


def test_unknown_values_are_none():
    class Mine(SequentialSampler):
        pass

    assert dataset_parts(DataLoader(TABLE, sampler=Mine(TABLE))) is None
    assert dataset_parts(DataLoader(TABLE, batch_sampler=[[0, 1], [2]])) is None


def test_several_datasets_are_several_parts():
    assert [part.size for part in dataset_parts(DataLoader(ConcatDataset([TABLE, Subset(TABLE, [1, 2])])))] == [20, 2]


def test_a_subclassed_sampler_of_full_length_returns_all_samples():
    class Seeded(torch.utils.data.RandomSampler):
        pass

    class Half(torch.utils.data.RandomSampler):
        def __len__(self):
            return len(TABLE) // 2

    assert [part.size for part in dataset_parts(DataLoader(TABLE, sampler=Seeded(TABLE)))] == [len(TABLE)]
    assert dataset_parts(DataLoader(TABLE, sampler=Half(TABLE))) is None


def test_tables_of_a_class_are_those_as_long_as_it():
    class Rows(Dataset):
        def __init__(self):
            self.x, self.y, self.other = torch.randn(6, 3).numpy(), torch.randn(6, 2), torch.randn(5, 2)

        def __len__(self):
            return 6

    assert [tuple(table.shape) for table in in_memory_tables(Rows())] == [(6, 3), (6, 2)]


def test_no_random_number_is_drawn():
    state = torch.get_rng_state()
    dataset_parts(DataLoader(TABLE, shuffle=True))
    in_memory_tables(TABLE)
    assert torch.equal(state, torch.get_rng_state())
