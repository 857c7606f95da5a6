"""The batches of loader workers do not fit into the shared memory of the container.

What you see
    A run that works on another machine ends with "DataLoader worker is killed by signal: Bus error", often after hours,
    at the first large batch. Or it ends with "No space left on device", although the disk is nearly empty.

Why it happens
    Workers pass tensors to the main process through the shared memory in /dev/shm. In a container its size is 64 MB by
    default. The system kills a worker that writes more, and no exception says why.

Fix
    Give the container more shared memory, or use fewer workers, a smaller ``prefetch_factor``, or smaller batches.

        docker run --shm-size=8g ...

    In compose.yaml write ``shm_size: 8gb``; in Kubernetes mount an emptyDir of medium Memory at /dev/shm.

When this is fine
    - The loader has no workers and so needs no shared memory.
    - The workers return paths or numbers, which need almost no shared memory.
    - The bus error has another cause, such as a memory-mapped file that became shorter during the run.

How it is detected
    ``trueloop doctor`` compares the size of /dev/shm with the size that a run needs: the number of workers times
    ``prefetch_factor`` times the size of a batch.

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
