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


def recurrent_state() -> Tensor:
    return torch.ones(2, requires_grad=True) * 3


def test_tensors_in_all_containers_are_detached():
    shared = recurrent_state()
    state = (
        shared,
        [recurrent_state(), None, 3, "text"],
        {"cache": Pair(recurrent_state(), recurrent_state()), "again": shared},
        Memory([recurrent_state()], 7),
        OrderedDict(a=recurrent_state()),
        defaultdict(list, {"b": [recurrent_state()]}),
    )
    result = detach(state)
    tensors = [
        *(result[0], result[1][0], result[2]["cache"].keys, result[2]["cache"].values, result[2]["again"]),
        *(result[3].cells[0], result[4]["a"], result[5]["b"][0]),
    ]
    assert all(not tensor.requires_grad and tensor.grad_fn is None for tensor in tensors)
    assert all(torch.equal(tensor, torch.full((2,), 3.0)) for tensor in tensors)
    assert result[2]["again"] is result[0]
    assert result[1][1:] == [None, 3, "text"]
    assert (result[3].step, result[3].name) == (7, "memory")
    assert [type(each) for each in result] == [type(each) for each in state]
    assert result[5]["new"] == []
    assert shared.requires_grad, "the original keeps its graph"
    assert result[0].data_ptr() == shared.data_ptr(), "no copy"


def test_backward_ends_at_the_detached_state():
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


def test_a_packed_sequence_is_detached():
    packed = nn.utils.rnn.pack_sequence([recurrent_state(), recurrent_state()[:1]])
    assert not detach(packed).data.requires_grad


def test_an_unknown_container_is_refused_with_its_path():
    class Cache:
        pass

    with pytest.raises(InvalidData, match=r"state\[1\]\['cache'\] is a Cache"):
        detach((recurrent_state(), {"cache": Cache()}))


# torch 2.13 warns of its own way to trace a Function.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def test_the_value_is_unchanged_and_the_gradient_multiplied():
    x, above = torch.randn(4, requires_grad=True), torch.tensor([1.0, -2.0, 0.5, 3.0])
    assert torch.equal(reverse_gradient(x, 0.5), x)
    assert torch.equal(torch.autograd.grad(reverse_gradient(x, 0.5), x, above)[0], above * -0.5)
    assert torch.equal(torch.autograd.grad(scale_gradient(x, 0.1), x, above)[0], above * 0.1)
    assert torch.equal(torch.autograd.grad(scale_gradient(x, 0), x, above)[0], torch.zeros(4))


def test_the_input_is_not_copied():
    x = torch.randn(4, requires_grad=True)
    assert reverse_gradient(x).data_ptr() == x.data_ptr()


def test_a_domain_adversarial_step():
    torch.manual_seed(0)
    features, judge, data = nn.Linear(3, 2), nn.Linear(2, 1), torch.randn(5, 3)

    def gradients(strength: float | None) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = features(data)
        loss = judge(hidden if strength is None else reverse_gradient(hidden, strength)).square().mean()
        return torch.autograd.grad(loss, (features.weight, judge.weight))

    plain, reversed_ = gradients(None), gradients(0.3)
    torch.testing.assert_close(reversed_[0], plain[0] * -0.3)
    assert torch.equal(reversed_[1], plain[1])


def test_second_derivatives_and_vmap():
    x = torch.randn(3, 4, dtype=torch.float64)
    result = torch.func.vmap(torch.func.grad(lambda row: scale_gradient(row, 3.0).square().sum()))(x)
    torch.testing.assert_close(result, 6 * x)
    twice = torch.func.grad(torch.func.grad(lambda b: scale_gradient(b, 3.0) ** 3))(torch.tensor(2.0))
    assert twice == pytest.approx(3 * 3 * 6 * 2.0), "the factor comes in once for each derivative"


def test_compiling_needs_no_graph_break():
    compiled = torch.compile(lambda x: reverse_gradient(x, 2.0).square().sum(), backend="aot_eager", fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(torch.autograd.functional.jacobian(compiled, x), -4 * x)


@pytest.mark.parametrize("strength", [-1.0, float("nan"), float("inf")])
def test_an_invalid_strength_is_refused(strength: float):
    with pytest.raises(InvalidConfig, match=f"strength is {strength}"):
        reverse_gradient(torch.zeros(1), strength)


def test_an_invalid_factor_is_refused():
    with pytest.raises(InvalidConfig, match="factor is inf"):
        scale_gradient(torch.zeros(1), float("inf"))
