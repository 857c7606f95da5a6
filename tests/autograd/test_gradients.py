"""Reversal and scaling: values untouched, gradients multiplied, under vmap, twice, and in a domain-adversarial step."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from trueloop.autograd.gradients import detach, reverse_gradient, scale_gradient
from trueloop.core.errors import InvalidConfig, InvalidData

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


# torch 2.13 traces a Function by making one, of which it warns itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def test_the_value_stays_and_the_gradient_is_multiplied():
    x, above = torch.randn(4, requires_grad=True), torch.tensor([1.0, -2.0, 0.5, 3.0])
    assert torch.equal(reverse_gradient(x, 0.5), x)
    assert torch.equal(torch.autograd.grad(reverse_gradient(x, 0.5), x, above)[0], above * -0.5)
    assert torch.equal(torch.autograd.grad(scale_gradient(x, 0.1), x, above)[0], above * 0.1)
    assert torch.equal(torch.autograd.grad(scale_gradient(x, 0), x, above)[0], torch.zeros(4))


def test_nothing_is_copied():
    x = torch.randn(4, requires_grad=True)
    assert reverse_gradient(x).data_ptr() == x.data_ptr()


def test_features_learn_against_the_domain_and_the_judge_with_it():
    torch.manual_seed(0)
    features, judge, data = nn.Linear(3, 2), nn.Linear(2, 1), torch.randn(5, 3)

    def gradients(strength: float | None) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = features(data)
        loss = judge(hidden if strength is None else reverse_gradient(hidden, strength)).square().mean()
        return torch.autograd.grad(loss, (features.weight, judge.weight))

    plain, turned = gradients(None), gradients(0.3)
    torch.testing.assert_close(turned[0], plain[0] * -0.3)
    assert torch.equal(turned[1], plain[1])


def test_twice_and_under_vmap():
    x = torch.randn(3, 4, dtype=torch.float64)
    made = torch.func.vmap(torch.func.grad(lambda row: scale_gradient(row, 3.0).square().sum()))(x)
    torch.testing.assert_close(made, 6 * x)
    twice = torch.func.grad(torch.func.grad(lambda b: scale_gradient(b, 3.0) ** 3))(torch.tensor(2.0))
    assert twice == pytest.approx(3 * 3 * 6 * 2.0), "the factor comes in once for each derivative"


def test_compiled_without_a_break():
    compiled = torch.compile(lambda x: reverse_gradient(x, 2.0).square().sum(), backend="aot_eager", fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(torch.autograd.functional.jacobian(compiled, x), -4 * x)


@pytest.mark.parametrize("strength", [-1.0, float("nan"), float("inf")])
def test_a_strength_that_cannot_be_is_refused(strength: float):
    with pytest.raises(InvalidConfig, match=f"strength is {strength}"):
        reverse_gradient(torch.zeros(1), strength)


def test_a_factor_that_cannot_be_is_refused():
    with pytest.raises(InvalidConfig, match="factor is inf"):
        scale_gradient(torch.zeros(1), float("inf"))
