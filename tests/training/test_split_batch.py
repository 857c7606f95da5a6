"""A batch is split along its examples, or refused with an explanation."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from trueloop.core.errors import InvalidData
from trueloop.core.protocols import MicroBatch
from trueloop.training.split_batch import count_examples, split_micro_batch


class Pair(NamedTuple):
    inputs: Any
    target: Any


@dataclass(frozen=True)
class Graphless:
    x: torch.Tensor
    label: torch.Tensor
    task: str = "one"


X = torch.arange(14.0).reshape(7, 2)
Y = torch.arange(7)


def micro(data: Any, size: int | None = 7, closes: bool = True) -> MicroBatch:
    return MicroBatch(data, closes, None if size is None else tuple(range(100, 100 + size)))


@pytest.mark.parametrize("results", [7, None])
@pytest.mark.parametrize(
    "data",
    [
        X,
        (X, Y),
        [X, Y],
        {"x": X, "mask": None, "name": "task"},
        Pair(X, {"y": Y, "names": list("abcdefg")}),
        Graphless(X, Y),
        (X.numpy(), Y),
        OrderedDict(images=[torch.zeros(3, 4, 4)] * 7, boxes=[{"n": 1}] * 7),
    ],
)
def test_the_pieces_concatenated_are_the_batch(data: Any, results: int | None):
    pieces = split_micro_batch(micro(data, results), 3)
    assert [count_examples(piece) for piece in pieces] == [3, 3, 1]
    assert [piece.closes_window for piece in pieces] == [False, False, True]
    assert [type(piece.data) for piece in pieces] == [type(data)] * 3
    if results:
        assert [index for piece in pieces for index in piece.indices or ()] == list(range(100, 107))
    for leaves in zip(*(leaves_of(piece.data) for piece in pieces), strict=True):
        full = next(leaf for leaf in leaves_of(data) if concatenated(leaves, leaf))
        assert full is not None


def leaves_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves_of(part)]
    if isinstance(value, tuple) or (isinstance(value, list) and len(value) == 2 and torch.is_tensor(value[0])):
        return [leaf for part in value for leaf in leaves_of(part)]
    if isinstance(value, Graphless):
        return [value.x, value.label]
    return [] if value is None or isinstance(value, str) else [value]


def concatenated(parts: tuple[Any, ...], full: Any) -> bool:
    if type(parts[0]) is not type(full):
        return False
    if isinstance(full, list):
        return [each for part in parts for each in part] == full or sum(map(len, parts)) == len(full)
    if isinstance(full, np.ndarray):
        return bool((np.concatenate(parts) == full).all())
    return parts[0].dtype == full.dtype and torch.equal(torch.cat(parts), full)


def test_pieces_are_views_and_the_batch_does_not_change():
    batch = defaultdict(int, x=X)
    first, *_ = split_micro_batch(micro(batch), 4)
    assert first.data["x"].data_ptr() == X.data_ptr()
    assert type(first.data) is defaultdict
    assert batch["x"] is X


def test_a_small_or_empty_batch_is_returned_unchanged():
    full, empty = micro((X, Y)), MicroBatch(None, True, ())
    assert split_micro_batch(full, 7) == [full]
    assert split_micro_batch(empty, 1) == [empty]


def test_a_batch_of_two_examples_is_split_within_its_fields():
    first_piece, second_piece = split_micro_batch(micro([X[:2], Y[:2]], 2), 1)
    assert (first_piece.data[0].shape, second_piece.data[1].tolist()) == ((1, 2), [1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, torch.tensor(3)), r"\[1\] is a single number, which may be a count"),
        ({"x": X, "tokens": 512}, r"\['tokens'\] is the number 512"),
        ((X, torch.zeros(6)), r"\[1\] is tensor \[6\] float32, whose first dimension is not the 7 examples"),
        ((X, torch.eye(7).to_sparse()), "sparse tensor"),
        ((X, torch.nested.nested_tensor([torch.zeros(1)] * 7, layout=torch.jagged)), "nested tensor"),
        ((X, pack_padded_sequence(torch.zeros(3, 7, 1), torch.ones(7))), "packed sequence"),
        ((X, iter(())), "which only its own library can split"),
        ({"images": [torch.zeros(7, 4)] * 7}, "of examples or of fields"),
    ],
)
def test_parts_that_cannot_be_split_are_reported_with_their_path(data: Any, message: str):
    with pytest.raises(InvalidData, match=message):
        split_micro_batch(micro(data), 3)
