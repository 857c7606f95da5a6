"""Where watched programs tell how they are: one folder each, below one that only their user can read.

LIVE/20261121-220301-4711/feed.jsonl   what happened, line by line
LIVE/20261121-220301-4711/now          where the program is right now, in one line behind its checksum
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import gmtime, strftime
from typing import Final

FEED_NAME, POSITION_NAME = "feed.jsonl", "now"
MAX_ENDED_PROGRAMS: Final = 32  # folders of programs that have ended; older ones go when another begins
_NAME: Final = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9]{1,10}(-r[0-9]{1,6})?")


def live_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of a user's watched programs on this machine; it may not exist yet."""
    for runtime in (environment.get("XDG_RUNTIME_DIR", ""), f"/run/user/{_user()}"):  # in memory, most often
        if runtime and os.access(runtime, os.W_OK | os.X_OK) and Path(runtime).is_dir():
            return Path(runtime) / "trueloop"
    return Path(tempfile.gettempdir()) / f"trueloop-{_user()}-live"


def ensure_private_folder(folder: Path) -> None:
    """Make a folder that only this user can read, or see that it is one.

    Raises:
        OSError: it cannot be made, or is somebody else's, a link, or open to others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(f"{folder} is not a folder.")
    if not is_private_folder(folder):
        raise PermissionError(f"{folder} belongs to somebody else, or others can read it.")


def is_private_folder(folder: Path) -> bool:
    """True for a folder, no link to one, that belongs to this user, and that nobody else can read or write to.

    Where a folder for everybody's files is all there is, anybody can have made the one that we look for.
    """
    try:
        seen = folder.lstat()
    except OSError:
        return False
    private = not hasattr(os, "getuid") or (seen.st_uid == _user() and not seen.st_mode & 0o077)
    return stat.S_ISDIR(seen.st_mode) and private


def new_program_name(now: float, *, rank: int | None) -> str:
    """Name the folder of this process: when it began, its number, and its rank where there are several."""
    return strftime("%Y%m%d-%H%M%S", gmtime(now)) + f"-{os.getpid()}" + ("" if rank is None else f"-r{rank}")


def is_program_name(word: str) -> bool:
    """True for what `new_program_name` returns: nothing in it leads elsewhere."""
    return _NAME.fullmatch(word) is not None


def program_names(folder: Path) -> list[str]:
    """List the programs that have told something, the newest first; none of a folder that is not ours."""
    if not is_private_folder(folder):
        return []
    try:
        with os.scandir(folder) as entries:
            found = [each.name for each in entries if is_program_name(each.name) and each.is_dir(follow_symlinks=False)]
    except OSError:  # it was removed meanwhile
        return []
    return sorted(found, reverse=True)


def remove_ended_programs(folder: Path, is_running: Callable[[Path], bool] = lambda path: False, keep: int = MAX_ENDED_PROGRAMS) -> None:
    """Remove all but the newest of the programs that have ended; what is not ours in a folder keeps it there.

    Args:
        folder: of all programs.
        is_running: whether the program of a folder still does.
        keep: how many stay.
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


def _user() -> int:
    return getattr(os, "getuid", lambda: 0)()
