"""Splits that share samples, by index or by content."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

NAME = "splits-disjoint"


def data(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 4, generator=generator), torch.randint(0, 2, (n,), generator=generator))


def test_disjoint_subsets_hold(holds):
    whole = data()
    train, val = DataLoader(Subset(whole, range(40)), 8, shuffle=True), DataLoader(Subset(whole, range(40, 60)), 8)
    evidence = holds(NAME, model=nn.Linear(4, 2), loader=train, val=val)
    assert (evidence.numbers["train"], evidence.numbers["val"]) == (40, 20)


def test_indices_in_both_are_found(broken):
    whole = data()
    train = DataLoader(Subset(whole, range(45)), 8, shuffle=True)
    evidence = broken(NAME, model=nn.Linear(4, 2), loader=train, val=DataLoader(Subset(whole, range(40, 60)), 8))
    assert evidence.numbers["shared"] == 5
    assert evidence.cause == "index 40"
    assert evidence.message.startswith("5 indexes of one dataset are in both splits")


def test_samplers_that_overlap_are_found(broken, holds):
    whole = data()
    train = DataLoader(whole, 8, sampler=SubsetRandomSampler(range(40)))
    holds(
        NAME, model=nn.Linear(4, 2), loader=train, val=DataLoader(whole, 8, sampler=SubsetRandomSampler(range(40, 60)))
    )
    val = DataLoader(whole, 8, sampler=SubsetRandomSampler(range(39, 60)))
    assert broken(NAME, model=nn.Linear(4, 2), loader=train, val=val).cause == "index 39"


def test_copies_under_another_number_are_found(broken):
    train, val = data(), data(seed=1)
    x, y = val.tensors
    x[3], y[3] = train.tensors[0][17], train.tensors[1][17]
    evidence = broken(NAME, model=nn.Linear(4, 2), loader=DataLoader(train, 8), val=DataLoader(val, 8))
    assert "3 = 17" in evidence.message


def test_batches_without_a_dataset_are_read(broken, holds):
    batches = [(torch.full((2, 4), float(i)) + torch.tensor([[0.0], [0.5]]), torch.zeros(2)) for i in range(6)]
    holds(NAME, model=nn.Linear(4, 2), loader=batches[:4], val=batches[4:])
    broken(NAME, model=nn.Linear(4, 2), loader=batches[:5], val=batches[4:])


def test_samples_that_repeat_by_nature_are_no_alarm(not_applicable):
    torch.manual_seed(0)
    coin = TensorDataset(torch.randint(0, 2, (60, 2)).float(), torch.zeros(60))
    other = TensorDataset(torch.randint(0, 2, (20, 2)).float(), torch.zeros(20))
    evidence = not_applicable(NAME, model=nn.Linear(2, 2), loader=DataLoader(coin, 8), val=DataLoader(other, 8))
    assert "repeat one another" in evidence.message


def test_one_loader_does_not_apply(not_applicable):
    not_applicable(NAME, model=nn.Linear(4, 2), loader=DataLoader(data(), 8))


def test_what_was_not_read_is_told(holds):
    train, val = DataLoader(data(), 8), DataLoader(data(seed=1), 8)
    evidence = holds(NAME, model=nn.Linear(4, 2), loader=train, val=val, options={"samples": 10})
    assert evidence.numbers["train"] == 10
    assert "only up to the limits" in evidence.notes[0]
