"""A check that failed in a GPU kernel, with the message of CUDA, which a CPU never raises."""

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
def test_the_explanation_states_that_the_line_may_be_wrong(
    assert_message_explained: Callable[..., ExplainedError], error: str
):
    assert_message_explained(
        MESSAGE, "device-assert", "so the line above may be wrong", "CUDA_LAUNCH_BLOCKING=1", error=error
    )
