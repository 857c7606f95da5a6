"""The batches of loader workers do not fit into the shared memory of the container.

What you see
    A run that worked elsewhere ends with "DataLoader worker is killed by signal: Bus error", often only after hours,
    with the first large batch; or with "No space left on device" while the disk is nearly empty.

Why it happens
    Workers pass tensors through files in /dev/shm, which take memory only once they are written. A container has 64 MB
    there by default, and the system kills a worker that writes more: no exception is raised that says why.

Fix
    Give the container more shared memory, or use fewer workers, a smaller ``prefetch_factor``, or smaller batches.

        docker run --shm-size=8g ...

    In compose.yaml write ``shm_size: 8gb``; in Kubernetes mount an emptyDir of medium Memory at /dev/shm.

When this is fine
    - Loaders without workers, which need no shared memory.
    - Workers that return paths or numbers, which need next to none.
    - A bus error with another cause: a memory-mapped file that was truncated meanwhile.

How it is detected
    `trueloop doctor` compares /dev/shm with what a run needs: workers times ``prefetch_factor`` times the bytes of a
    batch.

References
    torch.multiprocessing, "Sharing strategies", https://docs.pytorch.org/docs/stable/multiprocessing.html
    torch.utils.data.DataLoader, prefetch_factor, https://docs.pytorch.org/docs/stable/data.html
    docker run, --shm-size, https://docs.docker.com/reference/cli/docker/container/run/
"""

from trueloop.failures.failure import Failure, Severity

FAILURE = Failure(
    code="ENV003",
    title="DataLoader batches exceed shared memory (/dev/shm)",
    severity=Severity.WARNING,
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images = TensorDataset(torch.randn(512, 3, 32, 32))
# 64 prefetched batches of 768 KiB: 48 MiB of the 64 MB that a container has
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
    fix="Give the container more shared memory (--shm-size=8g), or prefetch fewer and smaller batches.",
    checked_by_doctor=True,
)
