"""Reasons why PyTorch cannot use a GPU: raised where the build has no CUDA, else by the literal message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trueloop.core.findings import ExplainedError


@pytest.mark.parametrize(
    ("message", "meaning", "fix"),
    [
        (
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
            "was started without one", "--gpus all",
        ),
        ("The NVIDIA driver on your system is too old (found version 11040).", "is older", "Update the driver"),
        ("CUDA error: no kernel image is available for execution on the device", "no kernels", "get_arch_list"),
        ("No CUDA GPUs are available", "finds no GPU", "CUDA_VISIBLE_DEVICES"),
    ],
)  # fmt: skip
def test_messages_of_pytorch(
    message: str, meaning: str, fix: str, assert_message_explained: Callable[..., ExplainedError]
):
    explanation = assert_message_explained(message, "no-gpu", meaning, fix)
    assert "trueloop doctor" in explanation.fix


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this build of torch has CUDA")
def test_a_build_without_cuda(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        'import torch\ntorch.ones(2, device="cuda")  # <- raised\n', "no-gpu", "supports the CPU only", "get-started"
    )
