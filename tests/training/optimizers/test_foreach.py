"""Norms over many tensors, in sufficient precision."""

import pytest
import torch

from trueloop.training.optimizers.foreach import total_norm, total_norm_as_float


@pytest.mark.parametrize("measure", [total_norm, total_norm_as_float])
def test_norms_of_half_precision_are_computed_in_float32(measure):
    large = torch.full((100, 100), 1000.0, dtype=torch.float16)  # its norm overflows float16
    odd = torch.ones(257, dtype=torch.bfloat16)  # its norm is between two bfloat16 numbers
    assert float(measure([large, torch.zeros(0)])) == pytest.approx(1e5, rel=1e-5)
    assert float(measure([odd])) == pytest.approx(257**0.5, rel=1e-6)


@pytest.mark.parametrize("measure", [total_norm, total_norm_as_float])
def test_norms_of_other_dtypes_are_computed_directly(measure):
    tensors = [torch.full((3,), 2.0**-60, dtype=torch.float64), torch.zeros(2, 2), torch.ones(1, dtype=torch.float64)]
    assert float(measure(tensors)) == 1.0
    assert float(measure(tensors[:1])) == pytest.approx(3**0.5 * 2.0**-60, rel=1e-14)
