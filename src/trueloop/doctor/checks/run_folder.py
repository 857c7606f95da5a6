"""The run folder outlives the machine it is on: not a container's own layer, and not memory."""

from __future__ import annotations

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, ok, warning
from trueloop.doctor.machine import Machine


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Read the kind of file system."""
    folder = machine.folder
    if folder is None or not folder.kind:
        return None
    if folder.kind in ("tmpfs", "ramfs"):
        return warning(
            f"{folder.path} lies in memory ({folder.kind}): its checkpoints take memory, and are gone after a restart.",
            "Name a folder on a disk with --run-dir, or copy checkpoints away with --checkpoint.mirror.",
        )
    if machine.container and folder.kind in ("overlay", "aufs"):
        return warning(
            f"{folder.path} is the container's own layer, which is removed with it, runs and checkpoints too.",
            "Mount a volume there, name one with --run-dir, or copy checkpoints away with --checkpoint.mirror.",
        )
    return ok(f"{folder.path} is on {folder.kind}.")


CHECK = Check(title="Run folder", group="disk", look=look)
