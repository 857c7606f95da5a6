"""Checks of the folder for runs: free space, write permission, and the type of its file system."""

from typing import Final

from trueloop.core.formatting import format_count, format_size
from trueloop.doctor.diagnosis import Diagnosis, RunRequirements, check, error, ok, unknown, warning
from trueloop.doctor.machine import Machine

MIN_FREE_BYTES: Final = 2**30
MIN_FREE_FILES: Final = 200  # for a few checkpoints and the pages of a run
FREE_SPACE: Final = "Free some space, or name a folder on another disk with --run-dir."


@check("Disk", "disk")
def check_disk(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that the run can write its checkpoints, and that they fit on the disk."""
    folder = machine.folder
    if folder is None:
        return None
    if not folder.writable:
        return error(f"{folder.path} cannot be written to.", "Name another folder with --run-dir, or change its owner.")
    if folder.space is None:
        return unknown(f"The free space in {folder.path} is unknown.")
    if folder.files_left is not None and folder.files_left < MIN_FREE_FILES:
        files = format_count(folder.files_left, "file")
        return error(f"{folder.path} has free inodes for only {files}.", FREE_SPACE)
    return _compare_checkpoints(folder.path, folder.space.free_bytes, run)


def _compare_checkpoints(path: str, free: int, run: RunRequirements) -> Diagnosis:
    message = f"{format_size(free)} are free in {path}"
    if run.checkpoint_bytes is None:
        return warning(f"{message}.", FREE_SPACE) if free < MIN_FREE_BYTES else ok(f"{message}.")
    needed = run.checkpoint_bytes * run.checkpoints
    message += (
        f"; {run.checkpoints} checkpoints of {format_size(run.checkpoint_bytes)}, including the one being written, "
    )
    message += f"take {format_size(needed)}."
    if needed > free:
        return error(message, f"{FREE_SPACE} Or keep fewer: --checkpoint.keep-last 1.")
    return ok(message)


@check("Run folder", "disk")
def check_run_folder(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that the run folder is persistent: neither a container's writable layer nor memory."""
    folder = machine.folder
    if folder is None or not folder.kind:
        return None
    if folder.kind in ("tmpfs", "ramfs"):
        return warning(
            f"{folder.path} is in memory ({folder.kind}): its checkpoints take memory and are lost at a restart.",
            "Name a folder on a disk with --run-dir, or copy checkpoints away with --checkpoint.mirror.",
        )
    if machine.container and folder.kind in ("overlay", "aufs"):
        return warning(
            f"{folder.path} is in the container's writable layer: removing the container deletes runs and checkpoints.",
            "Mount a volume there, name one with --run-dir, or copy checkpoints away with --checkpoint.mirror.",
        )
    return ok(f"{folder.path} is on {folder.kind}.")
