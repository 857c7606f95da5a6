"""Batches of all types are traversed and rebuilt."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import NamedTuple

import torch

from trueloop.verification.batch_tree import (
    batch_size,
    describe_batch,
    leaves,
    replace_tensors,
    select_samples,
    split_batch,
    tensors,
    to_double,
)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    name: str


class Output(OrderedDict):
    extra = 3


X = torch.arange(6.0).reshape(3, 2)
TREE = {"pair": Pair(X, X[:, 0]), "list": [X, "text", 4], "record": Record(X, "a"), "output": Output(x=X)}


def test_leaves_have_their_places():
    assert [path for path, _ in leaves(TREE)] == [
        "['pair'][0]",
        "['pair'][1]",
        "['list'][0]",
        "['record'].x",
        "['output']['x']",
    ]


def test_kinds_survive_and_the_original_is_left_alone():
    rows = select_samples(TREE, slice(0, 2))
    assert isinstance(rows["pair"], Pair)
    assert rows["pair"].y.tolist() == [0.0, 2.0]
    assert rows["list"][1:] == ["text", 4]
    assert rows["record"].name == "a"
    assert rows["record"].x.shape == (2, 2)
    assert type(rows["output"]) is Output
    assert rows["output"]["x"].shape == (2, 2)
    assert batch_size(TREE) == 3


def test_what_has_no_row_per_sample_stays():
    assert select_samples((X, torch.ones(7)), slice(0, 1))[1].shape == (7,)


def test_parts_make_the_whole():
    parts = split_batch((X, X[:, 0]), [2, 1])
    assert torch.equal(torch.cat([part[0] for part in parts]), X)


def test_tensors_are_replaced_by_number():
    other = replace_tensors(TREE, {1: torch.zeros(3)})
    assert torch.equal(other["pair"].y, torch.zeros(3))
    assert torch.equal(TREE["pair"].y, X[:, 0])


def test_only_real_numbers_become_double():
    assert [leaf.dtype for leaf in tensors(to_double((X, torch.arange(3))))] == [torch.float64, torch.int64]


def test_batches_are_described():
    assert describe_batch((X, torch.arange(3))) == "([3, 2] float32, [3] int64)"
    assert describe_batch("text") == "str"


def test_a_tokenizers_output_keeps_its_class():
    class Encoding(UserDict):
        def __getattr__(self, name):
            return self.data[name]

    encoding = Encoding({"input_ids": X})
    rows = select_samples(encoding, slice(0, 1))
    assert rows.input_ids.shape == (1, 2)
    assert encoding.input_ids is X
