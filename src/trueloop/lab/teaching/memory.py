"""Measure the memory that the C library has allocated, which includes tensors and graphs."""

import ctypes
import resource
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter


class _Mallinfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def used_bytes() -> int:
    """Return the number of bytes in use: with glibc, those that malloc has allocated and that are not freed.

    PyTorch allocates CPU tensors and graph nodes with malloc; small Python objects are allocated elsewhere and not
    counted. Without glibc the result is the resident size, which is coarse: it seldom shrinks.

    Cost: 1 us; up to 10 ms with a hundred thousand tensors alive: `Meter` then measures less often.
    """
    return _reader()()


class Meter:
    """Reads the memory in use, and repeats the latest value while a new measurement would take too much time.

    Args:
        share: fraction of the time that measuring may take.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._next_measurement_s = 0.0
        self._latest_bytes = 0

    def read(self) -> int:
        """Return the bytes in use."""
        start_s = perf_counter()
        if start_s >= self._next_measurement_s:
            self._latest_bytes = used_bytes()
            end_s = perf_counter()
            self._next_measurement_s = end_s + (end_s - start_s) * (1 / self._share - 1)
        return self._latest_bytes


def describe_method() -> str:
    """Return a description of how memory is measured on this system."""
    return "bytes allocated by malloc" if _reader() is not _resident_bytes else "resident memory"


@cache
def _reader() -> Callable[[], int]:
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # another C library, or an old one
        return _resident_bytes
    mallinfo2.restype = _Mallinfo2

    def read_allocated() -> int:
        info = mallinfo2()
        return info.uordblks + info.hblkhd

    return read_allocated


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
