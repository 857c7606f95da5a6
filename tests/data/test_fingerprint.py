import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from trueloop.core.errors import InvalidData
from trueloop.data.datasets import TensorData
from trueloop.data.fingerprint import fingerprint

DATASETS = {
    "tensors": lambda: TensorData(torch.arange(20.0).reshape(10, 2), torch.arange(10)),
    "bfloat16": lambda: TensorData(torch.arange(10, dtype=torch.bfloat16)),
    "arrays": lambda: [np.arange(3, dtype=np.float32), np.float64(2)],
    "rows": lambda: [{"text": "ab", "n": 1, "x": [1.0, None]}, {"text": "c", "n": 2, "x": []}],
    "bytes": lambda: [b"ab", b"c"],
    "images": lambda: [Image.new("RGB", (2, 3), (1, 2, 3))],
}


@pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)
def test_the_same_content_has_the_same_fingerprint(make):
    word = fingerprint(make())
    assert re.fullmatch(r"\d+:sha256:[0-9a-f]{16}", word)
    assert fingerprint(make()) == word
    assert int(word.split(":")[0]) == len(make())


def test_any_change_of_a_small_dataset_changes_the_fingerprint():
    variants = [
        [(torch.tensor([1.0, 2.0]), 1)],
        [(torch.tensor([1.0, 2.5]), 1)],
        [(torch.tensor([1.0, 2.0]), 2)],
        [(torch.tensor([[1.0, 2.0]]), 1)],
        [(torch.tensor([1.0, 2.0], dtype=torch.float64), 1)],
        [(torch.tensor([1.0, 2.0]), 1.0)],
        [(torch.tensor([1.0, 2.0]), True)],
        [[torch.tensor([1.0, 2.0]), 1]],
        [(torch.tensor([1.0, 2.0]), 1)] * 2,
        [{"x": "ab", "y": "c"}],
        [{"x": "a", "y": "bc"}],
        [("ab", "c")],
        [("a", "bc")],
        [Image.new("L", (2, 3))],
        [Image.new("L", (3, 2))],
    ]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)


def test_the_order_of_keys_does_not_matter():
    assert fingerprint([{"a": 1, "b": 2}]) == fingerprint([{"b": 2, "a": 1}])


def test_of_a_large_dataset_only_some_samples_are_read():
    read = []

    class Large:
        def __len__(self):
            return 10**12

        def __getitem__(self, index):
            read.append(index)
            return index

    assert fingerprint(Large()).startswith(f"{10**12}:sha256:")
    assert len(read) == len(set(read)) == 256


def test_augmentation_does_not_change_the_fingerprint():
    class Noisy(TensorDataset):
        def __getitem__(self, index):
            return self.tensors[0][index] + torch.rand(()) + np.random.rand()

    data = Noisy(torch.arange(5.0))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    assert fingerprint(data) == fingerprint(data)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_samples_that_cannot_be_hashed_give_a_partial_fingerprint():
    word = fingerprint([(object(), 1)])
    assert word.startswith("1:partial:")
    assert fingerprint([(object(), 1)]) == word
    assert fingerprint([(object(), 2)]) != word


def test_data_without_a_length_is_refused():
    with pytest.raises(InvalidData, match="0 samples"):
        fingerprint([])
    with pytest.raises(InvalidData, match="no length"):
        fingerprint(iter([1]))
