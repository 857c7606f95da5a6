"""The threads of all processes have cores to run on. Libraries count the machine's cores, and know no group's limit."""

from __future__ import annotations

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, ok, warning
from trueloop.doctor.machine import Machine


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Count threads within an operation, times processes, against cores."""
    if machine.torch is None:
        return None
    threads, usable = need.threads or machine.torch.threads, machine.usable_cores
    if need.processes > 1 and need.threads is None and "OMP_NUM_THREADS" not in machine.environment:
        threads = 1  # as torchrun sets it where nobody has
    total = threads * need.processes
    share = max(1, int(usable // need.processes))
    if total > max(usable, need.processes):
        limit = f" (the group's limit; torch counts {machine.cores})" if usable < machine.cores else ""
        times = f"{need.processes} processes of {threads} threads" if need.processes > 1 else f"{threads} threads"
        return warning(
            f"{times} within one operation share {usable:g} cores{limit}: they wait for each other, and small "
            "operations become many times slower.",
            f"OMP_NUM_THREADS={share}, or the setting --threads {share}.",
        )
    return ok(f"{threads} {'thread' if threads == 1 else 'threads'} within one operation, for {usable:g} usable cores.")


CHECK = Check(title="Threads", group="processor", look=look)
