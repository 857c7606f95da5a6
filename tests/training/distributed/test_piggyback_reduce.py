"""Numbers that are reduced as a gradient are summed exactly."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from trueloop.training.distributed.piggyback_reduce import MAX_NUMBERS, PiggybackReduce, piggyback_dtype


def reduce_as_ddp(results, dtype):
    """Reduce each process's numbers like DDP: multiply by 1 / processes, and sum."""
    piggybacks = [PiggybackReduce(dtype, len(results)) for _ in results]
    averaged = sum(
        piggyback.encode(each) * (1.0 / len(results)) for piggyback, each in zip(piggybacks, results, strict=True)
    )
    for piggyback in piggybacks:
        piggyback.parameter.grad = averaged.clone()
    first, *others = [piggyback.decode(len(results[0])) for piggyback in piggybacks]
    assert all(each == pytest.approx(first, nan_ok=True) for each in others)
    return first


def shares(most, processes):
    return st.lists(st.integers(-most, most), min_size=processes, max_size=processes)


@given(st.integers(2, 50).flatmap(lambda processes: shares(2**34 // processes - 1024, processes)))
def test_integers_are_summed_exactly_in_float32(numbers):
    assert reduce_as_ddp([[number] for number in numbers], torch.float32) == [sum(numbers)]


def test_counts_of_a_thousand_processes_are_exact():
    results = [[1023.0, 1.0, float(rank)] for rank in range(1001)]
    assert reduce_as_ddp(results, torch.float32) == [1001 * 1023, 1001, 1001 * 500]


@example([0.0, -1 / 3])
@given(st.lists(st.floats(-1e30, 1e30), min_size=2, max_size=9))
def test_other_numbers_keep_the_precision_of_the_gradients(numbers):
    scale = max(1.0, *map(abs, numbers))
    assert abs(reduce_as_ddp([[x] for x in numbers], torch.float32)[0] - math.fsum(numbers)) <= 1e-6 * scale
    assert abs(reduce_as_ddp([[x] for x in numbers], torch.float64)[0] - math.fsum(numbers)) <= 1e-14 * scale


def test_nonfinite_numbers_stay_nonfinite():
    infinite, nothing, both, untouched = reduce_as_ddp(
        [[math.inf, math.nan, math.inf, 3.0], [1.0, 1.0, -math.inf, 4.0]], torch.float32
    )
    assert infinite == math.inf
    assert math.isnan(nothing)
    assert math.isnan(both)
    assert untouched == 7.0


def test_numbers_can_be_decoded_once():
    piggyback = PiggybackReduce(torch.float32, 2)
    piggyback.parameter.grad = piggyback.encode([1.0] * MAX_NUMBERS)
    assert piggyback.decode(MAX_NUMBERS) == [2.0] * MAX_NUMBERS
    with pytest.raises(RuntimeError, match="before the backward pass"):
        piggyback.decode(1)


def test_the_dtype_is_that_of_most_gradients():
    single, double = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, dtype=torch.float64))
    half = nn.Parameter(torch.zeros(9, dtype=torch.bfloat16))
    assert piggyback_dtype([single, double]) == torch.float32
    assert piggyback_dtype([double]) == torch.float64
    assert piggyback_dtype([single, half]) is None
    assert piggyback_dtype([]) is None
    assert piggyback_dtype([nn.Parameter(torch.zeros(1, device="meta"))]) is None
