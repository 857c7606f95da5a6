"""Digests of parameters are equal on all machines, tolerate rounding, and never wait for a GPU."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trueloop.tracing.replicas.tensor_digest import (
    MAX_VALUES,
    epsilon_of,
    find_differences,
    is_comparable,
    tensor_digest,
)

EPSILON = torch.finfo(torch.float32).eps


def numbers(*parameters: torch.Tensor) -> list[list[float]]:
    digest = tensor_digest(parameters)
    assert digest is not None
    assert digest.ready()
    return digest.numbers.tolist()


@given(st.integers(0, 2**31), st.floats(1e-4, 1.0))
def test_differences_beyond_rounding_are_reported_with_their_size(seed: int, share: float):
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(40, 30, generator=generator)
    way = torch.randn(40, 30, generator=generator)
    other = one + share * way * (one.norm() / way.norm())
    found = find_differences(numbers(one, way), numbers(other, way), [EPSILON, EPSILON], steps=1)
    assert [index for index, _ in found] == [0]
    assert 0 < found[0][1] < 6 * share


@given(st.integers(0, 2**31), st.integers(1, 10_000))
def test_rounding_is_not_reported(seed: int, steps: int):
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(1000, generator=generator)
    ulps = torch.randn(1000, generator=generator) * math.sqrt(steps)
    other = one + one * ulps * EPSILON
    assert find_differences(numbers(one), numbers(other), [EPSILON], steps) == []


def test_order_and_sign_matter():
    one = torch.randn(500, generator=torch.Generator().manual_seed(0))
    for other in (one.flip(0), -one, one.roll(1)):
        assert find_differences(numbers(one), numbers(other), [EPSILON], 1)


def test_a_parameter_near_zero_is_measured_relative_to_the_others():
    large, nothing, hardly = torch.ones(100), torch.zeros(4), torch.full((4,), 1e-12)
    assert find_differences(numbers(large, nothing), numbers(large, hardly), [EPSILON, EPSILON], 1) == []


def test_nonfinite_on_one_rank_only_is_reported():
    fine, broken = torch.ones(3), torch.tensor([1.0, math.nan, math.inf])
    assert find_differences(numbers(broken), numbers(broken), [EPSILON], 1) == []
    assert find_differences(numbers(broken), numbers(fine), [EPSILON], 1) == [(0, math.inf)]


def test_all_types_and_layouts():
    kinds = (torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int8)
    many = [torch.arange(-6, 6).reshape(1, 3, 2, 2).to(kind) for kind in kinds]
    turned = [each.contiguous(memory_format=torch.channels_last) for each in many]
    assert numbers(*many) == numbers(*turned)
    assert numbers(torch.empty(0, 3)) == [[0.0] * 4]
    assert [epsilon_of(each) for each in many] == [2**-52, 2**-7, 2**-10, 2**-23, 0.0]


def test_a_large_parameter_is_sampled():
    large = torch.ones(3 * MAX_VALUES + 17)
    assert MAX_VALUES / 2 < numbers(large)[0][0] <= MAX_VALUES


def test_shards_are_not_comparable():
    assert is_comparable(nn.Parameter(torch.ones(2)))
    assert not is_comparable(torch.ones(2, device="meta"))
    assert not is_comparable(torch.eye(2).to_sparse())

    class Shard(torch.Tensor):
        pass

    assert not is_comparable(torch.ones(2).as_subclass(Shard))


def test_no_number_is_read_and_no_generator_used():
    read: list[str] = []

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "_local_scalar_dense" in str(function) or "random" in str(function):
                read.append(str(function))
            return function(*args, **(kwargs or {}))

    before = torch.get_rng_state()
    parameter = nn.Parameter(torch.ones(30))
    version = parameter._version
    with Reads():
        tensor_digest([parameter])
    assert read == []
    assert torch.equal(torch.get_rng_state(), before)
    assert (parameter.grad, parameter._version) == (None, version)
