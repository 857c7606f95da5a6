"""Measure the memory of a run, and recognise out-of-memory errors."""

import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Final

import torch
from torch import nn

from trueloop.core.formatting import format_size

_STATM: Final = Path("/proc/self/statm")

# torch's exception class is only for its caching allocators; other out-of-memory errors are recognised by their text.
_OUT_OF_MEMORY_TEXTS: Final = (
    "DefaultCPUAllocator",
    "backend out of memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that torch could not allocate memory, on any device."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS)


def format_model_size(model: nn.Module) -> str:
    """Format the size of a model's parameters and buffers for a message."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return format_size(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))


def memory_mib(device: torch.device) -> float | None:
    """Return the memory in use in MiB: of tensors on a CUDA device, else of this process; None if unknown.

    Source: torch.cuda.memory_allocated; resident pages of proc(5), which only exists on Linux.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / 2**20
    try:
        resident = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return resident * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_memory_mib(device: torch.device) -> float | None:
    """Return the peak memory in MiB: of tensors on a CUDA device, else of this process; None if unknown.

    Source: torch.cuda.max_memory_allocated; getrusage(2), whose ru_maxrss is in KiB on Linux and in bytes on macOS.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


class MemorySampler:
    """Samples memory use about once a second: enough for a plot, and rare enough to cost nothing.

    Args:
        device: device for `memory_mib`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sampled_at = 0.0

    def sample_if_due(self) -> float | None:
        """Return the memory in use in MiB; None within a second of the last sample, or if it is unknown."""
        now = perf_counter()
        if now - self._sampled_at < 1.0:
            return None
        self._sampled_at = now
        return memory_mib(self._device)
