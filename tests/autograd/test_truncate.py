"""State without its graph, whatever holds it; and truncated backpropagation that goes no further back."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from trueloop.autograd.truncate import detach
from trueloop.core.errors import InvalidData

Pair = namedtuple("Pair", "keys values")


@dataclass(frozen=True)
class Memory:
    cells: list[Tensor]
    step: int
    name: str = "memory"


def grown() -> Tensor:
    return torch.ones(2, requires_grad=True) * 3


def test_everything_that_holds_tensors_is_looked_into():
    shared = grown()
    state = (
        shared,
        [grown(), None, 3, "text"],
        {"cache": Pair(grown(), grown()), "again": shared},
        Memory([grown()], 7),
        OrderedDict(a=grown()),
        defaultdict(list, {"b": [grown()]}),
    )
    made = detach(state)
    tensors = [
        *(made[0], made[1][0], made[2]["cache"].keys, made[2]["cache"].values, made[2]["again"]),
        *(made[3].cells[0], made[4]["a"], made[5]["b"][0]),
    ]
    assert all(not tensor.requires_grad and tensor.grad_fn is None for tensor in tensors)
    assert all(torch.equal(tensor, torch.full((2,), 3.0)) for tensor in tensors)
    assert made[2]["again"] is made[0]
    assert made[1][1:] == [None, 3, "text"]
    assert (made[3].step, made[3].name) == (7, "memory")
    assert [type(each) for each in made] == [type(each) for each in state]
    assert made[5]["new"] == []
    assert shared.requires_grad, "the original keeps its graph"
    assert made[0].data_ptr() == shared.data_ptr(), "no copy"


def test_truncated_backpropagation_goes_back_one_stretch():
    torch.manual_seed(0)
    cell, data = nn.LSTM(2, 3), torch.randn(2, 4, 1, 2)
    _, state = cell(data[0])
    out, _ = cell(data[1], detach(state))
    truncated = torch.autograd.grad(out.sum(), cell.weight_hh_l0)[0]
    constant = tuple(torch.tensor(each.tolist()) for each in state)
    out, _ = cell(data[1], constant)
    torch.testing.assert_close(truncated, torch.autograd.grad(out.sum(), cell.weight_hh_l0)[0])
    out, _ = cell(data[1], state)
    assert not torch.allclose(truncated, torch.autograd.grad(out.sum(), cell.weight_hh_l0)[0])


def test_a_packed_sequence():
    packed = nn.utils.rnn.pack_sequence([grown(), grown()[:1]])
    assert not detach(packed).data.requires_grad


def test_what_cannot_be_looked_into_is_named_with_its_place():
    class Cache:
        pass

    with pytest.raises(InvalidData, match=r"state\[1\]\['cache'\] is a Cache"):
        detach((grown(), {"cache": Cache()}))
