"""Which samples loaders can give, found without asking a dataset for one."""

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

from trueloop.tracing.sample_overlap import dataset_parts, in_memory_tables, row_digests

TABLE = TensorDataset(torch.randn(20, 9), torch.arange(20))


class Untouchable(Dataset):
    """A dataset that must not be asked."""

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


def test_equal_rows_have_equal_digests():
    table = torch.randn(50, 100)
    table[7] = table[31]
    numbers = row_digests([table], None)
    assert len(numbers.unique()) == 49
    assert numbers[7] == numbers[31]
    assert row_digests([table[:, :4]], None) is None


def test_different_rows_of_few_levels_have_different_digests():
    generator = torch.Generator().manual_seed(0)
    for sampling in (17, 256):
        table = torch.randint(sampling, (4096, 64), generator=generator).float() / (16 if sampling == 17 else 1)
        numbers = row_digests([table], None)
        assert len(numbers.unique()) == len(table.unique(dim=0))


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
    row_digests(in_memory_tables(TABLE), None)
    assert torch.equal(state, torch.get_rng_state())
