"""The run goes on the CPU without a word, although a GPU was meant for it.

What you see
    Ten to a hundred times slower than yesterday, and correct. The GPU's load is 0 %, and it is paid for.

Why it happens
    ``"cuda" if torch.cuda.is_available() else "cpu"`` is what every example says, and torch only answers False where
    its build has no CUDA (a requirements file that was pinned on a laptop), where the driver is too old, where the
    container was started without ``--gpus``, or where the batch system gave the job no device.

Fix
    Say which device is meant, and let it fail: ``torch.device("cuda")`` instead of a choice. With
    ``TRUELOOP_REQUIRE_GPU=1`` in the environment of a container or job, `trueloop train` and the entrypoint of our
    containers refuse to start without a GPU.

When this is fine
    A machine without any GPU, a test, a debugging run, a model that is small enough for the CPU: the same line is right
    there. What tells them apart is what the machine was meant for, and that stands in no program. Hence no running
    program is accused: `trueloop doctor` weighs device files, driver, and what the batch system has set.

References
    torch.cuda.is_available, https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_available.html
    CUDA compatibility, https://docs.nvidia.com/deploy/cuda-compatibility/
"""

from __future__ import annotations

from trueloop.failures.failure import Failure, Severity

FAILURE = Failure(
    code="ENV004",
    title="The run falls back to the CPU",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(16, 6, device=device)).square().mean().backward()
    optimizer.step()
""",
    good="""
import os
import torch
from torch import nn

device = torch.device(os.environ.get("DEVICE", "cpu"))  # DEVICE=cuda, and there is one or an error
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(16, 6, device=device)).square().mean().backward()
    optimizer.step()
""",
    fix="Ask for the device by its name, so that its absence is an error, or set TRUELOOP_REQUIRE_GPU=1.",
    examined=True,
)
