from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate

from trueloop.core.errors import InvalidData
from trueloop.data.collate import GatheredBatch, collate, pad_sequences

Point = namedtuple("Point", ["x", "y"])

STACKABLE = [
    [torch.ones(2), torch.zeros(2)],
    [(torch.ones(2), 1), (torch.zeros(2), 0)],
    [(torch.ones(2), 1.5, "a"), (torch.zeros(2), 0.5, "b")],
    [{"x": torch.ones(2), "y": 3}, {"x": torch.zeros(2), "y": 4}],
    [np.ones(3, dtype=np.float32), np.zeros(3, dtype=np.float32)],
    [Point(1, torch.ones(2)), Point(2, torch.ones(2))],
    [{"nested": {"x": torch.ones(1), "t": (1, 2.0)}}] * 3,
    [[torch.ones(1), torch.zeros(2)]] * 2,
    [[1, 2.0], [3, 4.0]],
    [1, 2, 3],
    [1.0, 2.0],
    [True, False],
    ["a", "b"],
]


def assert_same(actual, expected):
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for name in expected:
            assert_same(actual[name], expected[name])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected


@pytest.mark.parametrize("samples", STACKABLE, ids=range(len(STACKABLE)))
def test_samples_are_stacked_as_by_torch(samples):
    assert_same(collate(samples), default_collate(samples))


def test_lists_of_numbers_in_a_sample_become_one_tensor():
    rows = [
        {"x": [1, 2, 3], "y": [[0.5], [1.5]], "z": 7, "t": "a"},
        {"x": [4, 5, 6], "y": [[2.5], [3.5]], "z": 8, "t": "b"},
    ]
    expected = {
        "x": torch.tensor([[1, 2, 3], [4, 5, 6]]),
        "y": torch.tensor([[[0.5], [1.5]], [[2.5], [3.5]]]),
        "z": torch.tensor([7, 8]),
        "t": ["a", "b"],
    }
    assert_same(collate(rows), expected)
    assert_same(collate({name: [row[name] for row in rows] for name in rows[0]}), expected)
    assert_same(collate([([1, 2], 0), ([3, 4], 1)]), [torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1])])


def test_tensor_columns_are_unchanged():
    column = torch.ones(2, 3)
    assert collate({"x": column})["x"] is column


def test_a_gathered_batch_is_returned_unchanged_and_is_a_sequence():
    batch = [torch.arange(6).reshape(3, 2), torch.arange(3)]
    gathered = GatheredBatch(batch, 3)
    assert collate(gathered) is batch
    assert_same(default_collate(gathered), batch)
    assert [int(label) for _, label in gathered] == [0, 1, 2]
    assert [int(label) for _, label in gathered[1:]] == [1, 2]
    named = GatheredBatch({"x": batch[0]}, 3)
    assert_same(default_collate(named), {"x": batch[0]})


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            [torch.ones(2), torch.ones(2), torch.ones(3)],
            r"Sample 2 of the batch is float32\[3\]; sample 0 is float32\[2\]",
        ),
        ([(torch.ones(2), 1), (torch.ones(2, 1), 1)], r"Sample 1 of the batch is \(float32\[2, 1\], int\)"),
        ([{"x": 1}, {"y": 1}], r"Sample 1 of the batch is \{y: int\}"),
        ([{"x": [1, 2]}, {"x": [1]}], r"Sample 1 of the batch is \{x: int64\[1\]\}"),
        ([{"x": [[1, 2], [1]]}], "list that cannot become a tensor"),
        ([object(), object()], "Samples like object cannot be put into a batch"),
        ([None, None], "NoneType"),
        ([], "no samples"),
    ],
)
def test_samples_that_cannot_be_stacked_are_described(samples, message):
    with pytest.raises(InvalidData, match=message):
        collate(samples)


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=8)


@given(lengths, st.integers(-5, 5), st.sampled_from([(), (3,), (2, 2)]))
def test_padding_keeps_every_token_and_masks_the_padding(lengths, padding, inner):
    samples = [torch.randn(length, *inner) for length in lengths]
    padded, mask = pad_sequences(samples, padding)
    assert padded.shape == (len(lengths), max(lengths), *inner)
    assert mask.shape == padded.shape[:2]
    assert mask.dtype == torch.bool
    assert mask.sum(1).tolist() == lengths
    for row, real, sample in zip(padded, mask, samples, strict=True):
        assert torch.equal(row[: len(sample)], sample)
        assert real[: len(sample)].all()
        assert (row[len(sample) :] == padding).all()


@given(lengths)
def test_sequence_targets_get_their_own_padding(lengths):
    samples = [(torch.arange(length), torch.arange(length) + 1) for length in lengths]
    (padded, mask), target = pad_sequences(samples)
    assert torch.equal(target == -100, ~mask)
    assert torch.equal(target[mask], padded[mask] + 1)
    assert pad_sequences(samples, target_padding=-1)[1].min() == (-1 if len(set(lengths)) > 1 else 1)


def test_targets_of_equal_shape_are_stacked():
    samples = [(torch.ones(2), 0, "a"), (torch.ones(3), 1, "b")]
    (padded, mask), label, text = pad_sequences(samples, padding_value=9)
    assert padded.tolist() == [[1, 1, 9], [1, 1, 1]]
    assert mask.tolist() == [[True, True, False], [True, True, True]]
    assert label.tolist() == [0, 1]
    assert text == ["a", "b"]
    assert pad_sequences([(torch.ones(2), torch.ones(4)), (torch.ones(3), torch.zeros(4))])[1].shape == (2, 4)


def test_lists_of_numbers_are_sequences():
    padded, mask = pad_sequences([[1, 2], [3]])
    assert padded.tolist() == [[1, 2], [3, 0]]
    assert mask.tolist() == [[True, True], [True, False]]
    (padded, _), target = pad_sequences([([1, 2], [3, 4]), ([5], [6])])
    assert padded.tolist() == [[1, 2], [5, 0]]
    assert target.tolist() == [[3, 4], [6, -100]]


def test_sequence_fields_of_a_mapping_are_padded():
    samples = [
        {"ids": [1, 2, 3], "kind": [0, 0, 1], "labels": [1, 2, 3], "weight": 0.5},
        {"ids": [4], "kind": [1], "labels": [4], "weight": 1.5},
    ]
    batch = pad_sequences(samples)
    assert list(batch) == ["ids", "kind", "labels", "weight", "attention_mask"]
    assert batch["ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, -100, -100]]
    assert batch["weight"].tolist() == [0.5, 1.5]
    assert batch["attention_mask"].tolist() == [[True] * 3, [True, False, False]]


def test_only_the_listed_fields_are_padded():
    samples = [
        {"picture": torch.ones(4), "source": torch.ones(2), "translated": torch.ones(1)},
        {"picture": torch.ones(4), "source": torch.ones(3), "translated": torch.ones(2)},
    ]
    with pytest.raises(InvalidData, match="'picture': 4, 'source': 2"):
        pad_sequences(samples)
    batch = pad_sequences(samples, {"source": 7, "translated": 8}, mask="real")
    assert batch["picture"].shape == (2, 4)
    assert batch["source"].tolist() == [[1, 1, 7], [1, 1, 1]]
    assert batch["translated"].tolist() == [[1, 8], [1, 1]]
    assert batch["real"].tolist() == [[True, True, False], [True, True, True]]
    assert pad_sequences(samples, {"translated": 8, "source": 7})["attention_mask"].shape == (2, 2)
    with pytest.raises(InvalidData, match="no field 'sauce'"):
        pad_sequences(samples, {"sauce": 7})


def test_a_mask_in_the_samples_is_padded_and_returned():
    samples = [{"ids": [1, 2], "attention_mask": [0, 1]}, {"ids": [3], "attention_mask": [1]}]
    assert pad_sequences(samples)["attention_mask"].tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([torch.ones(2), torch.ones(0)], r"Sample 1 of the batch: sequence has shape \(0,\)"),
        ([torch.ones(2), torch.tensor(1.0)], r"Sample 1 of the batch: sequence has shape \(\)"),
        ([torch.ones(2, 3), torch.ones(2, 4)], r"Sample 1 .* shape \(2, 4\) .*\(2, 3\)"),
        ([torch.ones(2), torch.ones(2).int()], "Sample 1 .* torch.int32; sample 0 .* torch.float32"),
        ([(torch.ones(1), torch.ones(1).byte()), (torch.ones(2), torch.ones(2).byte())], "uint8 cannot hold .* -100"),
        ([{"x": 1}], "No field of x is a sequence"),
        ([], "no samples"),
    ],
)
def test_sequences_that_cannot_be_padded_are_described(samples, message):
    with pytest.raises(InvalidData, match=message):
        pad_sequences(samples)


def test_padding_values_by_field_need_mappings():
    with pytest.raises(InvalidData, match="a sample is a Tensor"):
        pad_sequences([torch.ones(1)], {"x": 0})


def test_both_functions_work_in_a_plain_loader():
    samples = [torch.ones(length) for length in (1, 3, 2)]
    [(padded, mask)] = DataLoader(samples, batch_size=3, collate_fn=pad_sequences)  # pyright: ignore[reportArgumentType]
    assert padded.sum(1).tolist() == mask.sum(1).tolist() == [1, 3, 2]
    [batch] = DataLoader([([1, 2], 0)] * 3, batch_size=3, collate_fn=collate)  # pyright: ignore[reportArgumentType]
    assert batch[0].shape == (3, 2)
