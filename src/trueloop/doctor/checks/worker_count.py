"""Loader workers have cores to run on: those this process may use, not those of the whole machine."""

from __future__ import annotations

from trueloop.core.formatting import format_count
from trueloop.doctor.diagnosis import Check, Diagnosis, Need, ok, warning
from trueloop.doctor.machine import Machine


def look(machine: Machine, need: Need) -> Diagnosis:
    """Count workers of all processes against cores."""
    usable = machine.usable_cores
    limit = f"; the group's limit is {machine.quota:g} of {machine.cores}" if usable < machine.cores else ""
    has = f"{usable:g} {'core' if usable == 1 else 'cores'} can be used{limit}"
    total = (need.workers or 0) * need.processes
    if total > usable:
        each = max(0, int(usable // need.processes) - 1)
        of = f" ({need.workers} for each of {need.processes} processes)" if need.processes > 1 else ""
        return warning(
            f"{format_count(total, 'loader worker')}{of}, and {has}: they take turns, and each costs memory.",
            f"--workers {each} leaves a core for the training itself.",
        )
    return ok(f"{has[0].upper()}{has[1:]}.")


CHECK = Check(title="Cores and workers", group="processor", look=look, failure="ENV002")
