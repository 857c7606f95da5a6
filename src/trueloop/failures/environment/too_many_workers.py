"""More loader workers run than there are CPU cores for them.

What you see
    The first batch of every epoch takes long, memory fills up, and the load of the machine exceeds its number of cores.
    More workers made it slower. In a container everything is slower than on its host.

Why it happens
    Workers without a core of their own compete with the other workers and with the training itself. PyTorch warns once
    of more workers than the machine has cores. Neither PyTorch nor ``os.cpu_count()`` knows the share of the cores that
    a container or a job gets (the quota of its cgroup).

Fix
    Use one worker per usable core, less one for the training, divided by the training processes on the machine.

        cores = len(os.sched_getaffinity(0))
        loader = DataLoader(data, batch_size=64, num_workers=(cores - 1) // processes)

When this is fine
    - Workers that mostly wait for a network or an object store: measure whether twice as many as cores are faster.

How it is detected
    `trueloop doctor` counts the cores that this process may use, quotas included. Running programs are not checked.
    Workers that mostly wait need no core: hence a warning.

References
    torch.utils.data, "Multi-process data loading", https://docs.pytorch.org/docs/stable/data.html
    Control Group v2, cpu.max, https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from trueloop.failures.failure import Failure, Severity, changed

BAD = """
import warnings
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")  # this hides the warning of PyTorch as well
data = TensorDataset(torch.randn(64, 6))
loader = DataLoader(data, batch_size=8, num_workers=8)  # copied from a machine with 16 cores
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for (inputs,) in loader:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="ENV002",
    title="More DataLoader workers than CPU cores",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "import warnings": "import os",
            'warnings.filterwarnings("ignore")  # this hides the warning of PyTorch as well': (
                "cores = len(os.sched_getaffinity(0))  # without the quota of a container"
            ),
            "loader = DataLoader(data, batch_size=8, num_workers=8)  # copied from a machine with 16 cores": (
                "loader = DataLoader(data, batch_size=8, num_workers=min(cores - 1, 2))"
            ),
        },
    ),
    fix="Start one worker per usable core, less one, divided by the training processes on the machine.",
    checked_by_doctor=True,
)
