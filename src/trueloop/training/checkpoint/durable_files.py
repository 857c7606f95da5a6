"""Write files that survive a crash: they are synced to disk, and identified by size and checksum."""

import errno
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trueloop.core.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """Expected size and checksum of a file."""

    size: int
    """Size in bytes."""
    sha256: str
    """SHA-256 of the whole file, in hexadecimal."""


def write_synced(path: Path, parts: Sequence[bytes | memoryview]) -> FileStamp:
    """Write a new file and sync it to disk.

    Args:
        path: path of a file that does not exist.
        parts: the content of the file, in order.

    Returns:
        Size and checksum of ``parts``; the file is not read again.

    Raises:
        OSError: the file cannot be written; a partial file is left.

    Cost: no copy; the checksum is computed while writing (which takes half the time for 512 MiB).
    """
    digest = hashlib.sha256()
    with path.open("xb") as file, ThreadPoolExecutor(1) as hashing:
        for part in parts:
            hashing.submit(digest.update, part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return FileStamp(size=sum(len(part) for part in parts), sha256=digest.hexdigest())


def sync(path: Path) -> None:
    """Sync a file, or a folder with new or renamed files, to disk, so that it survives a power failure.

    Raises:
        OSError: the path cannot be synced.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError) -> CheckpointError:
    """Return an error that explains a failed write, whose partial files have been removed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        fix = f"Free space on the disk of {path.parent}, or choose a run folder on another one; then resume."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = f"Allow writing to {path.parent}, or choose another run folder; then resume."
    else:
        fix = f"Check {path.parent}, or choose another run folder; then resume."
    return CheckpointError(
        f"{path} could not be written: {error.strerror or error}.",
        why="Earlier files are untouched, and nothing partial is left.",
        fix=fix,
    )


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return an error that explains a failed read."""
    return CheckpointError(f"{path} could not be read: {error.strerror or error}.", fix="Check path and permissions.")


def damage_error(path: Path, reason: str) -> CheckpointError:
    """Return an error that explains that a file or checkpoint has changed since it was written."""
    return CheckpointError(
        f"{path} is damaged: {reason}.",
        why="Resuming from it would silently use other numbers than those that were saved.",
        fix="Use another checkpoint, or copy this one again from an intact copy.",
    )
