"""What is printed comes out at once: a container's log keeps it back, and a killed process takes it along."""

from __future__ import annotations

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, note, ok, warning
from trueloop.doctor.machine import Machine


def look(machine: Machine, need: Need) -> Diagnosis:
    """Ask standard output, and weigh whether anybody follows it."""
    if not machine.output_waits:
        return ok("Standard output is written at once.")
    told = "Standard output is kept back until 8 KiB are full"
    if machine.container:
        return warning(f"{told}: the container's log lags behind, and its end is lost with a killed process.", _REMEDY)
    return note(f"{told}: what prints into a file or a pipe is seen late.", _REMEDY)


_REMEDY = "PYTHONUNBUFFERED=1"

CHECK = Check(title="Output", group="output", look=look)
