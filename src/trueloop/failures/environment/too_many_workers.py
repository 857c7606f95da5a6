"""The loaders have more workers than there are CPU cores.

What you see
    The first batch of every epoch takes long, the memory fills up, and more workers make training slower. In a
    container, training is slower than directly on the machine.

Why it happens
    Workers that have to share a core slow down each other and the training. PyTorch warns if a loader has more workers
    than ``len(os.sched_getaffinity(0))``: the cores that the process may run on. This number does not include the CPU
    quota of a container or job (``cpu.max`` of its cgroup), and ``os.cpu_count()`` is the number of all cores.

Fix
    Subtract one core, for the training, from the usable cores, and divide the rest by the number of training processes.

        cores = len(os.sched_getaffinity(0))
        loader = DataLoader(data, batch_size=64, num_workers=(cores - 1) // processes)

    In a container with a CPU quota, use the number of usable cores that ``trueloop doctor`` prints.

When this is fine
    - The workers mostly wait for a network or an object store. Measure whether more workers than cores are faster.

How it is detected
    ``trueloop doctor`` counts the cores that this process may use, including quotas. A run is not checked. Workers that
    mostly wait do not need their own cores, so this is a warning.

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
    fix="Use at most (usable cores - 1) / (training processes on the machine) workers.",
    checked_by_doctor=True,
)
