import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, TensorDataset

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.collate import collate
from trueloop.data.datasets import TensorData, as_tensor_data, split

X, Y = torch.randn(10, 3), torch.arange(10)


def test_samples_equal_those_of_a_tensor_dataset():
    actual, expected = TensorData(X, Y), TensorDataset(X, Y)
    assert len(actual) == len(expected)
    for index in (0, 9, -1):
        assert all(torch.equal(a, b) for a, b in zip(actual[index], expected[index], strict=True))


@pytest.mark.parametrize("collate_fn", [None, collate], ids=["torch's collate", "ours"])
@pytest.mark.parametrize("tensors", [(X, Y), (X, X), (X,)], ids=["xy", "xx", "x"])
def test_batches_equal_those_of_a_tensor_dataset(collate_fn, tensors):
    actual = DataLoader(TensorData(*tensors), batch_size=2, collate_fn=collate_fn)
    expected = DataLoader(TensorDataset(*tensors), batch_size=2)
    for one, other in zip(actual, expected, strict=True):
        assert type(one) is type(other)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_mapping_of_tensors_gives_dicts():
    data = TensorData({"x": X, "y": Y})
    assert data[3]["y"] == 3
    batch = data.gather(torch.tensor([4, 1]))
    assert batch["y"].tolist() == [4, 1]
    assert torch.equal(batch["x"], X[[4, 1]])
    [full] = DataLoader(data, batch_size=10)
    assert torch.equal(full["x"], X)


def test_a_subset_shares_the_tensors():
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
def test_tensors_of_different_sizes_are_refused(tensors, message):
    with pytest.raises(InvalidData, match=message):
        TensorData(*tensors)


def test_tensor_datasets_and_their_subsets_are_converted():
    full = TensorDataset(X, Y)
    subset = Subset(Subset(full, [5, 6, 7]), [2, 0])
    assert as_tensor_data(full).gather(torch.tensor([2]))[1].tolist() == [2]
    assert as_tensor_data(subset).gather(torch.tensor([0, 1]))[1].tolist() == [7, 5]
    assert as_tensor_data(Subset(full, [-1, 0])).gather(torch.tensor([0]))[1].tolist() == [len(full) - 1]
    assert as_tensor_data(Subset([1, 2, 3], [0])) is None
    assert as_tensor_data([1, 2, 3]) is None

    class Augmented(TensorDataset):
        pass

    assert as_tensor_data(Augmented(X)) is None


@given(st.integers(3, 400), st.integers(0, 99), st.sampled_from([[1.0], [0.5, 0.5], [0.8, 0.1, 0.1], [1 / 3] * 3]))
def test_parts_are_disjoint_and_complete(n, seed, shares):
    if n < 20 and min(shares) < 0.2:
        n += 20
    parts = split(list(range(n)), shares, seed)
    assert sorted(i for part in parts for i in part.indices) == list(range(n))
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - share * n) <= 1
    repeated = split(list(range(n)), shares, seed)
    assert [part.indices for part in repeated] == [part.indices for part in parts]


def test_parts_depend_on_the_seed_and_are_read_as_batches():
    parts = split(TensorData(X, Y), [0.7, 0.3], seed=1)
    assert [type(part) for part in parts] == [TensorData, TensorData]
    labels = [part.gather(torch.arange(len(part)))[1].tolist() for part in parts]
    assert sorted(labels[0] + labels[1]) == list(range(10))
    other = split(TensorData(X, Y), [0.7, 0.3], seed=2)[0]
    assert other.gather(torch.arange(7))[1].tolist() != labels[0]


@pytest.mark.parametrize("shares", [[], [0.5, 0.4], [1.5, -0.5], [1.0, 0.0]])
def test_shares_must_be_positive_and_sum_to_one(shares):
    with pytest.raises(InvalidConfig, match="shares"):
        split([1, 2, 3], shares)


def test_an_empty_part_is_refused():
    with pytest.raises(InvalidData, match=r"\[3, 0\]"):
        split([1, 2, 3], [0.95, 0.05])
