"""How much memory a run holds, measured where tensors and graphs lie: in what the C library has given out."""

import ctypes
import resource
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter


class _Allocated(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def held_bytes() -> int:
    """Return the bytes this process holds: where glibc is, those that malloc has given out and not taken back.

    torch allocates tensors on the CPU and the nodes of graphs there; small objects of Python lie elsewhere and are not
    counted. Without glibc it is the memory resident, which is coarse: it seldom shrinks.

    Cost: 1 us; up to 10 ms where a hundred thousand tensors live: `Meter` asks less often then.
    """
    return _reader()()


class Meter:
    """Reads the memory held, as often as that is cheap; in between it tells what it read last.

    Args:
        share: of the time that reading may take, at most.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._again_s = 0.0
        self._last = 0

    def read(self) -> int:
        """Return the bytes held."""
        start_s = perf_counter()
        if start_s >= self._again_s:
            self._last = held_bytes()
            end_s = perf_counter()
            self._again_s = end_s + (end_s - start_s) * (1 / self._share - 1)
        return self._last


def measured_by() -> str:
    """Say in words how memory is measured here."""
    return "bytes given out by malloc" if _reader() is not _resident else "memory resident"


@cache
def _reader() -> Callable[[], int]:
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # another C library, or an old one
        return _resident
    mallinfo2.restype = _Allocated

    def given_out() -> int:
        given = mallinfo2()
        return given.uordblks + given.hblkhd

    return given_out


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
