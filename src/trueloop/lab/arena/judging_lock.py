"""Whose turn it is to judge: one process at a time for each board, and none keeps it that has ended."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from trueloop.core.errors import BoardError


@contextmanager
def turn(board: Path) -> Generator[bool]:
    """Try to become the board's only judge, without waiting; false where another one is.

    Args:
        board: the board's file; the lock is a file beside it.

    Raises:
        BoardError: this system or file system knows no such locks.
    """
    try:
        import fcntl
    except ImportError as error:
        raise BoardError("This system has no file locks of the kind that the referee needs.") from error
    path = board.with_name(board.name + ".lock")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BoardError(f"{str(path)!r} cannot be written: {error.strerror}.", fix="Give another --board.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            mine = False
        yield mine
    finally:
        os.close(handle)
