"""Processes and threads can be started: a container often has a limit of a few hundred."""

from __future__ import annotations

import math
from typing import Final

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, ok
from trueloop.doctor.machine import Machine

OTHERS: Final = 8  # of each training process: torch's own, those that write the journal and checkpoints
OF_WORKER: Final = 3  # itself, and what feeds its queue


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Count them for all processes, as the limit does."""
    left = machine.processes_left
    if left is None:
        return None
    threads = need.threads or (machine.torch.threads if machine.torch else 1)
    needed = need.processes * (OTHERS + threads + OF_WORKER * (need.workers or 0))
    if needed > left:
        return error(
            f"{left} more processes and threads may be started (pids.max), and this run takes about {needed}: "
            "can't start new thread.",
            f"Raise the limit by {math.ceil((needed - left) / 100) * 100} or more (docker run --pids-limit), or take "
            "fewer workers.",
        )
    return ok(f"{left} more processes and threads may be started.")


CHECK = Check(title="Processes and threads", group="memory", look=look)
