"""How much memory a run has taken at its peak."""

from __future__ import annotations

import sys

import torch


def peak_memory_mib(device: torch.device) -> float | None:
    """Return the peak so far in MiB: of tensors on a CUDA device, else of this whole process; None where untold.

    Source: torch.cuda.max_memory_allocated; getrusage(2), whose ru_maxrss is in KiB on Linux and in bytes on macOS.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
