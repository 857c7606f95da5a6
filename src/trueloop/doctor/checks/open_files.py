"""Enough files may be open: workers' pipes, and every tensor on its way through shared memory."""

from __future__ import annotations

from typing import Final

from trueloop.doctor.diagnosis import PREFETCH, Check, Diagnosis, Need, error, ok, warning
from trueloop.doctor.machine import Machine

OTHERS: Final = 64  # torch's libraries, the journal, data files, the terminal
PIPES: Final = 3  # of each worker: two ends of its queue, and what tells that it has ended
TENSORS: Final = 8  # of a rich batch; each one on its way is an open file, as torch shares memory on Linux


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Count them for one process, as the limit does."""
    if machine.open_files is None:
        return None
    soft, hard = machine.open_files
    workers = need.workers or 0
    least, rich = OTHERS + PIPES * workers, OTHERS + (PIPES + PREFETCH * TENSORS) * workers
    if soft < 0 or soft >= max(rich, 2 * OTHERS):
        return ok(f"{'Any number of' if soft < 0 else soft} files may be open.")
    most = "unlimited" if hard < 0 else str(hard)
    remedy = f"ulimit -n {most if hard > soft or hard < 0 else max(rich, 1024)}"
    remedy += ' before the start; or torch.multiprocessing.set_sharing_strategy("file_system").'
    told = f"{soft} files may be open at once (ulimit -n)"
    if soft < least:
        return error(f"{told}, and {workers} workers alone need {least}: Too many open files.", remedy)
    return warning(f"{told}; {workers} workers with batches of {TENSORS} tensors need {rich}.", remedy)


CHECK = Check(title="Open files", group="memory", look=look)
