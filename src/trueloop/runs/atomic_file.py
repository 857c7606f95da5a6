"""Replace a file of a run atomically: a reader sees either the old or the new content."""

from pathlib import Path

from trueloop.core.errors import RunFolderError


def write_atomically(path: Path, content: bytes, subject: str) -> None:
    """Write a new file next to ``path``, then rename it.

    Args:
        path: the file to create or replace.
        content: the new content.
        subject: what the file contains, for the error message: "The report".

    Raises:
        RunFolderError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise RunFolderError(f"{subject} cannot be written to {path}: {error.strerror or error}.") from error
