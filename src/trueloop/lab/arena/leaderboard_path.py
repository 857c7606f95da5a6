"""Where the board lies when nobody says."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from trueloop.core.errors import BoardError
from trueloop.core.paths import is_file
from trueloop.lab.arena.leaderboard import Board


def board_at(given: Path | None) -> Board:
    """Open the board that is named, or the user's own.

    Raises:
        BoardError: no file lies where one is named.
    """
    if given is not None and not is_file(given):
        raise BoardError(f"There is no board {str(given)!r}.", fix="`trueloop arena submit --board` begins one.")
    return Board(given or usual_board())


def usual_board(environment: Mapping[str, str] | None = None, *, platform: str = sys.platform) -> Path:
    """Return the user's own board: a file in the folder that the system keeps programs' data in.

    Args:
        environment: of the process, unless given.
        platform: as `sys.platform` names it.
    """
    given = os.environ if environment is None else environment
    home = Path.home()
    if platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif platform == "win32":
        folder = Path(given.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        folder = Path(given.get("XDG_DATA_HOME") or home / ".local" / "share")
    return folder / "trueloop" / "arena.sqlite3"
