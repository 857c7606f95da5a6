"""Batches on their way from loader workers fit into /dev/shm, of which a container has 64 MB unless it is told."""

from __future__ import annotations

import math
from typing import Final

from trueloop.core.formatting import format_size
from trueloop.doctor.diagnosis import PREFETCH, Check, Diagnosis, Need, error, ok, unknown, warning
from trueloop.doctor.machine import SHARED, Machine, Space

SMALL: Final = 256 * 2**20
"""Below this it is mentioned also where nobody knows how large a batch is: 4 workers with batches of 32 MiB."""


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Multiply workers, batches they keep ready, and bytes."""
    if machine.system != "Linux":
        return None
    if machine.shared is None:
        return unknown(f"There is no {SHARED} to look at.") if need.workers != 0 else None
    free, needed = machine.shared.free_bytes, need.in_flight_bytes
    if needed is not None and needed > free:
        each = f" for each of {need.processes} processes" if need.processes > 1 else ""
        return error(
            f"{SHARED} has {format_size(free)} free; {need.workers} workers{each} keep {PREFETCH} batches of "
            f"{format_size(need.batch_bytes or 0)} ready in it: {format_size(needed)}. A worker would die of a bus error.",
            f"{_larger(machine, needed)} Or fewer workers, or smaller micro-batches.",
        )
    if needed is None and need.workers != 0 and machine.shared.total_bytes <= SMALL:
        return warning(
            f"{SHARED} is {format_size(machine.shared.total_bytes)} in all, through which loader workers pass their batches.",
            _larger(machine, SMALL),
        )
    return ok(_room(machine.shared, needed))


def _room(shared: Space, needed: int | None) -> str:
    asked = f"; batches on their way take {format_size(needed)}" if needed else ""
    return f"{SHARED} has {format_size(shared.free_bytes)} free{asked}."


def _larger(machine: Machine, needed: int) -> str:
    gib = max(1, math.ceil(2 * needed / 2**30))
    if machine.container == "kubernetes":
        return f"Mount an emptyDir of medium: Memory and sizeLimit: {gib}Gi at {SHARED}."
    if machine.container:
        return f"Give the container more: --shm-size={gib}g (shm_size in compose.yaml), or --ipc=host."
    return f"Make it larger: mount -o remount,size={gib}G {SHARED}."


CHECK = Check(title="Shared memory", group="memory", look=look, failure="ENV003")
