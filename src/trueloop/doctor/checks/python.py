"""Python is one that trueloop and torch run on."""

from __future__ import annotations

from typing import Final

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, ok
from trueloop.doctor.machine import Machine

OLDEST: Final = (3, 11)


def look(machine: Machine, need: Need) -> Diagnosis:
    """Compare its version."""
    written = ".".join(str(part) for part in machine.python)
    if machine.python[:2] < OLDEST:
        oldest = ".".join(str(part) for part in OLDEST)
        return error(
            f"This is Python {written}; trueloop needs {oldest} or newer.", f"Install Python {oldest} or newer."
        )
    return ok(f"Python {written} on {machine.system}.")


CHECK = Check(title="Python", group="software", look=look)
