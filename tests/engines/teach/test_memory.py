"""Memory is measured where tensors lie."""

from __future__ import annotations

import torch

from trueloop.engines.teach.memory import held_bytes, measured_by


def test_a_tensor_is_counted_as_long_as_it_lives():
    before = held_bytes()
    tensor = torch.ones(4 << 20)
    held = held_bytes() - before
    assert 0.9 * tensor.nbytes < held < 1.5 * tensor.nbytes
    if "malloc" in measured_by():  # what is resident may stay
        del tensor
        assert abs(held_bytes() - before) < 1 << 20
