"""Torch is there, can be imported, and is not too old."""

from __future__ import annotations

import re
from typing import Final

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, ok
from trueloop.doctor.machine import Machine

OLDEST: Final = (2, 6)


def look(machine: Machine, need: Need) -> Diagnosis:
    """Say its version and for what it was built."""
    if machine.torch is None and machine.torch_problem:
        return error(
            f"torch cannot be imported: {machine.torch_problem}",
            "Install it again in a fresh environment: pip install --force-reinstall torch.",
        )
    if machine.torch is None:
        return error("torch is not installed: nothing can be trained.", "pip install 'trueloop[train]'")
    found = re.match(r"(\d+)\.(\d+)", machine.torch.version)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        return error(
            f"torch {machine.torch.version} is too old: 2.6 or newer is needed.", "pip install --upgrade torch"
        )
    return ok(f"torch {machine.torch.version}, built for {machine.torch.build}.")


CHECK = Check(title="Torch", group="software", look=look)
