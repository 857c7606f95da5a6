"""A file that the user asked for: refused before the work where it cannot be written, and written after it."""

from __future__ import annotations

import os
from pathlib import Path

from trueloop.core.errors import InvalidConfig, RunFolderError
from trueloop.core.paths import is_folder, path_exists


def check_writable(path: Path, what: str) -> Path:
    """Return the same place, whatever folder the program will change to.

    Args:
        path: as it was typed.
        what: it is to hold: "report".

    Raises:
        InvalidConfig: nothing can be written there; better said before a run of hours than after it.
    """
    whole = path.resolve()
    if is_folder(whole) or not os.access(whole if path_exists(whole) else whole.parent, os.W_OK):
        raise InvalidConfig(
            f"A {what} cannot be written to {str(path)!r}.", fix="Name a file in a folder that you may write to."
        )
    return whole


def write_output(path: Path, text: str, what: str) -> None:
    """Write it.

    Raises:
        RunFolderError: the disk is full, or the folder has gone.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"The {what} could not be written to {path}: {error.strerror}.") from error
