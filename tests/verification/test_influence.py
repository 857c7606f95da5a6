"""Differences of outputs are measured, and inputs are perturbed."""

import math

import pytest
import torch
from torch import nn

from trueloop.verification.evidence import NotApplicable
from trueloop.verification.influence import (
    FLOAT64_TOLERANCE,
    LOW_PRECISION_TOLERANCE,
    content_tensors,
    max_difference,
    perturb,
    relative_differences,
    to_best_precision,
)
from trueloop.verification.model_call import ModelCall


def test_differences_are_relative_to_the_greatest_number():
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, 3.0]])
    assert max_difference(a, b, 0.0) == 0.25
    assert max_difference(a, b, 0.3) == 0.0
    assert relative_differences(a, b, 1, 0.0).tolist() == [0.0, 0.25]
    assert relative_differences(a, b, 2, 0.0).tolist() == [[0.0, 0.0], [0.0, 0.25]]


def test_what_is_no_number_is_compared_too():
    lost, inf = torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.inf])
    assert max_difference(lost, lost, 0.0) == 0.0
    assert max_difference(inf, inf, 0.0) == 0.0
    assert max_difference(torch.tensor([1.0, 2.0]), lost, 0.0) == math.inf
    assert max_difference(torch.ones(2), torch.ones(3), 0.0) == math.inf
    assert max_difference(torch.tensor([1, 2]), torch.tensor([1, 3]), 0.5) == 1.0


def test_an_input_is_changed_where_it_is_asked():
    ids = torch.tensor([[3, 5, 3], [7, 5, 5]])
    where = torch.tensor([[True, False, True], [False, True, False]])
    other = perturb(ids, where)
    assert torch.equal(other != ids, where)
    assert set(other.flatten().tolist()) <= {3, 5, 7}
    real = torch.randn(2, 3, 4)
    assert torch.equal((perturb(real, where) != real).all(-1), where)
    same = torch.tensor([4.0, 4.0])
    assert (perturb(same, torch.tensor([True, True])) != same).all()
    with pytest.raises(NotApplicable):
        perturb(torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool))


def test_content_is_not_a_mask_or_a_length():
    ids, mask, lengths = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool), torch.tensor([3, 2])
    assert content_tensors(ModelCall(args=(lengths, mask, ids), kwargs={}), lambda leaf: True) == [2]
    assert content_tensors(ModelCall(args=(ids, torch.zeros(2, 3)), kwargs={}), lambda leaf: True) == [1]
    with pytest.raises(NotApplicable):
        content_tensors(ModelCall(args=(mask,), kwargs={}), lambda leaf: True)


def test_double_precision_where_the_model_takes_it():
    class Single(nn.Linear):
        def forward(self, x):
            if x.dtype is torch.float64:
                raise RuntimeError("expected scalar type Float but found Double")
            return super().forward(x)

    call = ModelCall(args=(torch.randn(2, 3),), kwargs={})
    assert to_best_precision(nn.Linear(3, 3), call, 0).tolerance == FLOAT64_TOLERANCE
    assert to_best_precision(Single(3, 3), call, 0).tolerance == LOW_PRECISION_TOLERANCE
