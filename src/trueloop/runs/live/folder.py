"""Manage the live folder, which is private to its user and has a subfolder for every watched program.

LIVE/20261121-220301-4711/feed.jsonl   the events, line by line
LIVE/20261121-220301-4711/now          the current position, one line preceded by its checksum
"""

import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import gmtime, strftime
from typing import Final

FEED_NAME, POSITION_NAME = "feed.jsonl", "now"
MAX_ENDED_PROGRAMS: Final = 32  # older folders are removed when another program starts
PRIVATE_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
"""Flags of `os.open`: child processes do not inherit the file, and a link is not followed."""
READ_FLAGS: Final = os.O_RDONLY | PRIVATE_FLAGS | getattr(os, "O_NONBLOCK", 0)
_NAME: Final = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9]{1,10}(-r[0-9]{1,6})?")


def live_folder(environment: Mapping[str, str]) -> Path:
    """Return the live folder of this user on this machine; it may not exist yet."""
    for runtime in (environment.get("XDG_RUNTIME_DIR", ""), f"/run/user/{_uid()}"):  # usually a RAM disk
        if runtime and os.access(runtime, os.W_OK | os.X_OK) and Path(runtime).is_dir():
            return Path(runtime) / "trueloop"
    return Path(tempfile.gettempdir()) / f"trueloop-{_uid()}-live"


def ensure_private_folder(folder: Path) -> None:
    """Create a folder that only this user can read, or check that an existing one is private.

    Raises:
        OSError: the folder cannot be created, is a link, belongs to another user, or is accessible to others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(f"{folder} is not a folder.")
    if not is_private_folder(folder):
        raise PermissionError(f"{folder} belongs to another user, or others can read it.")


def is_private_folder(folder: Path) -> bool:
    """Return True for a folder, not a link, that belongs to this user and that other users cannot access.

    Below a shared temporary folder, any other user may have created a folder of this name first.
    """
    try:
        info = folder.lstat()
    except OSError:
        return False
    private = not hasattr(os, "getuid") or (info.st_uid == _uid() and not info.st_mode & 0o077)
    return stat.S_ISDIR(info.st_mode) and private


def new_program_name(now: float, *, rank: int | None) -> str:
    """Return a folder name for this process: start time, process id, and rank if the program has several processes."""
    return strftime("%Y%m%d-%H%M%S", gmtime(now)) + f"-{os.getpid()}" + ("" if rank is None else f"-r{rank}")


def is_program_name(name: str) -> bool:
    """Return True for names of `new_program_name`, which cannot lead out of the live folder."""
    return _NAME.fullmatch(name) is not None


def program_names(folder: Path) -> list[str]:
    """List the folder names of all programs, newest first; empty if the live folder is not private."""
    if not is_private_folder(folder):
        return []
    try:
        with os.scandir(folder) as entries:
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # the folder was removed meanwhile
        return []
    return sorted(filter(is_program_name, folders), reverse=True)


def remove_ended_programs(
    folder: Path, is_running: Callable[[Path], bool] = lambda path: False, keep: int = MAX_ENDED_PROGRAMS
) -> None:
    """Remove the folders of all but the newest ended programs; a folder with other files than a feed is not removed.

    Args:
        folder: the live folder.
        is_running: function that returns True if the program of a folder is still running.
        keep: number of newest folders to keep.
    """
    for name in program_names(folder)[keep:]:
        if is_running(folder / name):
            continue
        try:
            for file in (FEED_NAME, POSITION_NAME):
                (folder / name / file).unlink(missing_ok=True)
            (folder / name).rmdir()
        except OSError:
            continue


def _uid() -> int:
    return getattr(os, "getuid", lambda: 0)()
