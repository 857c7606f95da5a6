"""Checkpoints fit on the disk, and can be written."""

from __future__ import annotations

from typing import Final

from trueloop.core.formatting import format_count, format_size
from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, ok, unknown, warning
from trueloop.doctor.machine import Machine

LITTLE: Final = 2**30
ELSEWHERE: Final = "Make room, or name a folder on another disk with --run-dir."
FEW_FILES: Final = 200  # of a handful of checkpoints and the pages of a run


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Weigh the checkpoints that lie there at once against what is free."""
    folder = machine.folder
    if folder is None:
        return None
    if not folder.writable:
        return error(f"{folder.path} cannot be written to.", "Name another folder with --run-dir, or change its owner.")
    if folder.space is None:
        return unknown(f"How much is free in {folder.path} cannot be told.")
    if folder.files_left is not None and folder.files_left < FEW_FILES:
        return error(f"{folder.path} has room for {format_count(folder.files_left, 'file')} more (inodes).", ELSEWHERE)
    return _weighed(folder.path, folder.space.free_bytes, need)


def _weighed(path: str, free: int, need: Need) -> Diagnosis:
    told = f"{format_size(free)} are free in {path}"
    if need.checkpoint_bytes is None:
        return warning(f"{told}.", ELSEWHERE) if free < LITTLE else ok(f"{told}.")
    needed = need.checkpoint_bytes * need.checkpoints
    told += f"; {need.checkpoints} checkpoints of {format_size(need.checkpoint_bytes)}, the one in writing included, take "
    told += f"{format_size(needed)}."
    if needed > free:
        return error(told, f"{ELSEWHERE} Or keep fewer: --checkpoint.keep-last 1.")
    return ok(told)


CHECK = Check(title="Disk", group="disk", look=look)
