"""Check before a run that output files are writable, and write them after the run."""

import os
from pathlib import Path

from trueloop.core.errors import InvalidConfig, RunFolderError
from trueloop.core.paths import is_folder, path_exists


def check_writable(path: Path, content: str) -> Path:
    """Check that a file can be written, and return its absolute path, for a program that changes its working directory.

    Args:
        path: the path that the user typed.
        content: what the file contains, for the error message: "report".

    Raises:
        InvalidConfig: the file cannot be written.
    """
    absolute = path.resolve()
    if is_folder(absolute) or not os.access(absolute if path_exists(absolute) else absolute.parent, os.W_OK):
        raise InvalidConfig(
            f"A {content} cannot be written to {str(path)!r}.", fix="Name a file in a folder that you may write to."
        )
    return absolute


def write_output(path: Path, text: str, content: str) -> None:
    """Write an output file.

    Raises:
        RunFolderError: the disk is full, or the folder no longer exists.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"The {content} could not be written to {path}: {error.strerror}.") from error
