"""Different devices: the tensor to move. The meta device replaces an accelerator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError


def test_a_batch_that_was_not_moved(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).to("meta")
        for step in range(3):
            x = torch.randn(8, 4)  # <- created
            model(x)  # <- raised
        """,
        "device-mismatch",
        "`x` on cpu and `0.weight` on meta",
        "x = x.to('meta')",
    )


def test_a_plain_attribute(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.ones(4)  # <- created
                self.fc = nn.Linear(4, 1)
            def forward(self, x):
                return self.fc(x * self.scale)  # <- raised
        model = Net().to("meta")
        model(torch.randn(8, 4).to("meta"))
        """,
        "device-mismatch",
        "`self.scale` on cpu",
        'self.register_buffer("scale", ...)',
    )


def test_a_tensor_created_in_a_forward(assert_explained: Callable[..., ExplainedError]):
    assert_explained(
        """
        import torch
        from torch import nn
        class Net(nn.Module):
            def forward(self, x):
                noise = torch.randn(8, 4)  # <- created
                return x + noise  # <- raised
        Net()(torch.randn(8, 4, device="meta"))
        """,
        "device-mismatch",
        "`noise` on cpu",
        "device=x.device",
    )


# Literal messages of CUDA.
SAME = "Expected all tensors to be on the same device, but"
TYPES = "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor)"


@pytest.mark.parametrize(
    "message",
    [
        f"{SAME} found at least two devices, cuda:0 and cpu! (when checking argument for argument mat1 in addmm)",
        f"{SAME} got mat1 is on cpu, different from other tensors on cuda:0 (when checking argument in method addmm)",
        f"{TYPES} should be the same or input should be a MKLDNN tensor and weight is a dense tensor",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ],
)
def test_messages_of_cuda(assert_message_explained: Callable[..., ExplainedError], message: str):
    assert_message_explained(message, "device-mismatch", "different devices", "x.to(device)")
