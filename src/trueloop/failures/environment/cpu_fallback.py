"""The run uses the CPU without any message, although it was meant to use a GPU.

What you see
    Training is ten to a hundred times slower than before, with correct results. The GPU load is 0 %.

Why it happens
    Most examples contain ``"cuda" if torch.cuda.is_available() else "cpu"``. ``is_available()`` returns False without
    an error if PyTorch was installed without CUDA, the driver is too old, the container was started without ``--gpus``,
    or the batch system gave the job no GPU.

Fix
    Name the device, so that a missing GPU is an error.

        device = torch.device("cuda")

    With ``TRUELOOP_REQUIRE_GPU=1`` in the environment, ``trueloop train`` and the entrypoint of the trueloop containers
    need a GPU to start.

When this is fine
    - The machine has no GPU, or the run is a test or for debugging.
    - The model is small enough for the CPU.

How it is detected
    ``trueloop doctor`` checks the device files, the driver, and the settings of the batch system. A run is not checked,
    because the sanitizer cannot know which device you intended.

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
    fix="Name the device, so that a missing GPU is an error, or set TRUELOOP_REQUIRE_GPU=1.",
    checked_by_doctor=True,
)
