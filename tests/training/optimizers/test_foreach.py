"""Norms over many tensors, in a precision that bears them."""

import pytest
import torch

from trueloop.training.optimizers.foreach import total_norm, total_norm_on_host


@pytest.mark.parametrize("measure", [total_norm, total_norm_on_host])
def test_halves_are_measured_as_wider_numbers(measure):
    large = torch.full((100, 100), 1000.0, dtype=torch.float16)  # its norm is beyond float16
    odd = torch.ones(257, dtype=torch.bfloat16)  # and this one between two of bfloat16
    assert float(measure([large, torch.zeros(0)])) == pytest.approx(1e5, rel=1e-5)
    assert float(measure([odd])) == pytest.approx(257**0.5, rel=1e-6)


@pytest.mark.parametrize("measure", [total_norm, total_norm_on_host])
def test_other_dtypes_are_measured_directly(measure):
    tensors = [torch.full((3,), 2.0**-60, dtype=torch.float64), torch.zeros(2, 2), torch.ones(1, dtype=torch.float64)]
    assert float(measure(tensors)) == 1.0
    assert float(measure(tensors[:1])) == pytest.approx(3**0.5 * 2.0**-60, rel=1e-14)
