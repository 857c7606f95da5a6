"""Batches of loader workers do not fit into the shared memory of the container.

What you see
    A run that has gone well elsewhere ends with "DataLoader worker is killed by signal: Bus error", often only after
    hours, with the first large batch; or with "No space left on device" while the disk is nearly empty.

Why it happens
    Workers pass tensors through files in /dev/shm, which take room only once they are written to. A container
    has 64 MB of it unless it is told otherwise, and the system kills a worker that writes beyond: there is no
    exception before that, and none that says why.

Fix
    Give the container more, ``docker run --shm-size=8g``, ``shm_size: 8gb`` in compose.yaml, in Kubernetes an emptyDir
    of medium Memory at /dev/shm; or take fewer workers, a smaller ``prefetch_factor``, smaller batches. What is needed
    is workers times ``prefetch_factor`` times the bytes of a batch: `trueloop doctor` computes it.

When this is fine
    Loaders without workers pass nothing on. Workers that return paths, or numbers, need next to nothing. A bus error
    can also come from a file that is mapped into memory and cut short meanwhile.

References
    torch.multiprocessing, "Sharing strategies", https://docs.pytorch.org/docs/stable/multiprocessing.html
    torch.utils.data.DataLoader, prefetch_factor, https://docs.pytorch.org/docs/stable/data.html
    docker run, --shm-size, https://docs.docker.com/reference/cli/docker/container/run/
"""

from __future__ import annotations

from trueloop.failures.failure import Failure, Severity

FAILURE = Failure(
    code="ENV003",
    title="Batches do not fit into shared memory",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images = TensorDataset(torch.randn(512, 3, 32, 32))
# 64 batches of 768 KiB on their way at once: 48 MiB of the 64 MB that a container has
loader = DataLoader(images, batch_size=64, num_workers=1, prefetch_factor=64)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for (inputs,) in loader:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images = TensorDataset(torch.randn(512, 3, 32, 32))
loader = DataLoader(images, batch_size=64, num_workers=1, prefetch_factor=2)  # 1.5 MiB
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for (inputs,) in loader:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
""",
    fix="Give the container more shared memory (--shm-size=8g), or keep fewer and smaller batches ready.",
    examined=True,
)
