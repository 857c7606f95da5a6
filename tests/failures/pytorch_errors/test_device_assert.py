"""A check that failed on the accelerator; in the words of CUDA, which no CPU says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trueloop.core.findings import ExplainedError

MESSAGE = """CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize("error", ["RuntimeError", "torch.AcceleratorError"][: 1 + hasattr(torch, "AcceleratorError")])
def test_it_says_that_the_line_is_a_later_one(as_torch: Callable[..., ExplainedError], error: str):
    as_torch(MESSAGE, "device-assert", "only where it was noticed", "CUDA_LAUNCH_BLOCKING=1", error=error)
