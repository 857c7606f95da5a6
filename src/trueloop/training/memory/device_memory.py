"""How much memory a run takes, and whether an error says that there is none left."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Final

import torch
from torch import nn

from trueloop.core.formatting import format_size

_PAGES: Final = Path("/proc/self/statm")

# torch has a class of its own for its caching allocators only; the others are told by their words.
_WORDS: Final = (
    "DefaultCPUAllocator",
    "backend out of memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True where torch could not get memory for a tensor, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def taken_by(model: nn.Module) -> str:
    """Return the size of a model's parameters and buffers in words."""
    held = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return format_size(sum(tensor.numel() * tensor.element_size() for tensor in held.values()))


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


class Weighing:
    """Looks at the memory about once a second: enough for a plot, too seldom to cost anything.

    Args:
        device: as for `memory_mib`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._looked = 0.0

    def now_and_then(self) -> float | None:
        """Return what is taken now in MiB; None where that was told less than a second ago, or cannot be told."""
        now = perf_counter()
        if now - self._looked < 1.0:
            return None
        self._looked = now
        return memory_mib(self._device)
