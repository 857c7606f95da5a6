import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, TensorDataset

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.collate import collate
from trueloop.data.datasets import TensorData, as_tensor_data, split

X, Y = torch.randn(10, 3), torch.arange(10)


def test_a_sample_is_that_of_torchs_tensor_dataset():
    ours, theirs = TensorData(X, Y), TensorDataset(X, Y)
    assert len(ours) == len(theirs)
    for index in (0, 9, -1):
        assert all(torch.equal(a, b) for a, b in zip(ours[index], theirs[index], strict=True))


@pytest.mark.parametrize("collate_fn", [None, collate], ids=["torch's collate", "ours"])
@pytest.mark.parametrize("tensors", [(X, Y), (X, X), (X,)], ids=["xy", "xx", "x"])
def test_a_plain_loader_gives_the_batches_of_torchs_tensor_dataset(collate_fn, tensors):
    ours = DataLoader(TensorData(*tensors), batch_size=2, collate_fn=collate_fn)
    theirs = DataLoader(TensorDataset(*tensors), batch_size=2)
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_mapping_gives_mappings():
    data = TensorData({"x": X, "y": Y})
    assert data[3]["y"] == 3
    batch = data.gather(torch.tensor([4, 1]))
    assert batch["y"].tolist() == [4, 1]
    assert torch.equal(batch["x"], X[[4, 1]])
    [whole] = DataLoader(data, batch_size=10)
    assert torch.equal(whole["x"], X)


def test_a_part_shares_the_tensors_of_the_whole():
    part = TensorData(X, Y).subset(torch.tensor([7, 2, 5])).subset(torch.tensor([2, 0]))
    assert len(part) == 2
    assert [int(y) for _, y in (part[0], part[1])] == [5, 7]
    assert part.gather(torch.tensor([1, 0]))[1].tolist() == [7, 5]
    assert part.tensors[0] is X
    named = TensorData({"y": Y}).subset(torch.tensor([7, 2]))
    assert named.gather(torch.tensor([1]))["y"].tolist() == [2]
    assert named[0]["y"] == 7


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((torch.ones(3), torch.ones(4)), r"\{0: 3, 1: 4\} rows"),
        (({"x": torch.ones(3), "y": torch.ones(2)},), r"\{'x': 3, 'y': 2\} rows"),
        ((), r"received \[\]"),
        (({},), r"received \[\]"),
        (([1, 2, 3],), "list"),
        ((torch.tensor(1.0),), "Tensor"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensors, message):
    with pytest.raises(InvalidData, match=message):
        TensorData(*tensors)


def test_torchs_own_in_memory_datasets_are_recognised():
    whole = TensorDataset(X, Y)
    subset = Subset(Subset(whole, [5, 6, 7]), [2, 0])
    assert as_tensor_data(whole).gather(torch.tensor([2]))[1].tolist() == [2]
    assert as_tensor_data(subset).gather(torch.tensor([0, 1]))[1].tolist() == [7, 5]
    assert as_tensor_data(Subset(whole, [-1, 0])).gather(torch.tensor([0]))[1].tolist() == [len(whole) - 1]
    assert as_tensor_data(Subset([1, 2, 3], [0])) is None
    assert as_tensor_data([1, 2, 3]) is None

    class Augmented(TensorDataset):
        pass

    assert as_tensor_data(Augmented(X)) is None


@given(st.integers(3, 400), st.integers(0, 99), st.sampled_from([[1.0], [0.5, 0.5], [0.8, 0.1, 0.1], [1 / 3] * 3]))
def test_parts_are_disjoint_and_whole(n, seed, shares):
    if n < 20 and min(shares) < 0.2:
        n += 20
    parts = split(list(range(n)), shares, seed)
    assert sorted(i for part in parts for i in part.indices) == list(range(n))
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - share * n) <= 1
    again = split(list(range(n)), shares, seed)
    assert [part.indices for part in again] == [part.indices for part in parts]


def test_parts_differ_by_seed_and_keep_vectorised_reads():
    parts = split(TensorData(X, Y), [0.7, 0.3], seed=1)
    assert [type(part) for part in parts] == [TensorData, TensorData]
    labels = [part.gather(torch.arange(len(part)))[1].tolist() for part in parts]
    assert sorted(labels[0] + labels[1]) == list(range(10))
    other = split(TensorData(X, Y), [0.7, 0.3], seed=2)[0]
    assert other.gather(torch.arange(7))[1].tolist() != labels[0]


@pytest.mark.parametrize("shares", [[], [0.5, 0.4], [1.5, -0.5], [1.0, 0.0]])
def test_shares_are_positive_and_whole(shares):
    with pytest.raises(InvalidConfig, match="shares"):
        split([1, 2, 3], shares)


def test_no_part_is_empty():
    with pytest.raises(InvalidData, match=r"\[3, 0\]"):
        split([1, 2, 3], [0.95, 0.05])
