"""The run uses the CPU without any message, although a GPU was meant for it.

What you see
    Training is ten to a hundred times slower than yesterday, and correct. The load of the GPU is 0 %, and you pay for
    it.

Why it happens
    ``"cuda" if torch.cuda.is_available() else "cpu"`` is in every example. ``is_available()`` just returns False where
    the build of PyTorch has no CUDA (a requirements file that was pinned on a laptop), the driver is too old, the
    container was started without ``--gpus``, or the batch system gave the job no device.

Fix
    Name the device, so that its absence is an error.

        device = torch.device("cuda")

    With ``TRUELOOP_REQUIRE_GPU=1`` in the environment, `trueloop train` and the entrypoint of the trueloop containers
    refuse to start without a GPU.

When this is fine
    - A machine without any GPU, a test, or a debugging run.
    - A model that is small enough for the CPU.

How it is detected
    `trueloop doctor` checks the device files, the driver, and the settings of the batch system. Running programs are
    not checked, because no program states what its machine was meant for.

References
    torch.cuda.is_available, https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_available.html
    CUDA compatibility, https://docs.nvidia.com/deploy/cuda-compatibility/
"""

from trueloop.failures.failure import Failure, Severity, changed

BAD = """
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(16, 6, device=device)).square().mean().backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="ENV004",
    title="Training silently falls back to the CPU",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "import torch": "import os\nimport torch",
            'device = "cuda" if torch.cuda.is_available() else "cpu"': (
                'device = torch.device(os.environ.get("DEVICE", "cpu"))  # with DEVICE=cuda a missing GPU is an error'
            ),
        },
    ),
    fix="Name the device, so that its absence is an error, or set TRUELOOP_REQUIRE_GPU=1.",
    checked_by_doctor=True,
)
