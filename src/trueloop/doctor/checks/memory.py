"""There is memory left for what a run keeps: in the group's limit, not only in the machine."""

from __future__ import annotations

from typing import Final

from trueloop.core.formatting import format_size
from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, ok, unknown, warning
from trueloop.doctor.machine import Machine

LEAST: Final = 2**30  # torch with its libraries takes 0.3 to 0.6 GiB before the first tensor


def look(machine: Machine, need: Need) -> Diagnosis:
    """Weigh the state and the batches against what is left."""
    left, total = machine.available_bytes, machine.memory_bytes
    if left is None:
        return unknown("The system does not say how much memory is left.")
    limit = machine.memory_limit_bytes
    limited = limit is not None and total is not None and limit < total
    of = f"; the group's limit is {format_size(limit or 0)}, of the machine's {format_size(total or 0)}" if limited else ""
    # Each process holds the state; while it is saved, the first one holds a copy of it.
    needed = (need.checkpoint_bytes or 0) * (need.processes + 1) + (need.in_flight_bytes or 0)
    told = f"{format_size(left)} of memory can be taken{of}"
    remedy = "Raise the limit of the container or job." if limited else "End other programs, or take a larger machine."
    if needed > left and not machine.gpus:
        return error(f"{told}, and the state and batches of this run take {format_size(needed)}.", remedy)
    if left < LEAST:
        return warning(f"{told}: the system ends the largest process when there is none.", remedy)
    return ok(f"{told}.")


CHECK = Check(title="Memory", group="memory", look=look)
