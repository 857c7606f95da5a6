"""How much memory a run has taken at its peak."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import torch

_PAGES: Final = Path("/proc/self/statm")


def memory_mib(device: torch.device) -> float | None:
    """Return what is taken now in MiB: by tensors on a CUDA device, else by this whole process; None where untold.

    Source: torch.cuda.memory_allocated; resident pages of proc(5), which there are on Linux only.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / 2**20
    try:
        resident = int(_PAGES.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return resident * os.sysconf("SC_PAGE_SIZE") / 2**20


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
