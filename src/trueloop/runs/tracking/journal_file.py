"""The journal as a file that somebody else writes: whole lines from any place, one copier at a time."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import FileIO

BLOCK_BYTES = 1 << 20
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}  # the last one: NFS locks no file for a reader


def complete_lines(file: FileIO, start: int, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines from a place on, each with where it begins; a torn last one is left.

    Args:
        file: unbuffered, because what was read of a torn line may since have been cut off and written anew.
        start: bytes; the beginning of a line.
        upto: no line is begun here or later; None = as far as it goes.
    """
    place, rest = start, b""
    file.seek(start)
    while block := file.read(BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if upto is not None and place >= upto:
                return
            yield place, line + b"\n"
            place += len(line) + 1
        file.seek(place + len(rest))


def checksum_before(file: FileIO, place: int) -> str:
    """Return a checksum of what stands before a place, to know it again: "" at the beginning or where none is."""
    start = max(0, place - 4096)
    file.seek(start)
    before = file.read(place - start) or b""
    return f"{zlib.crc32(before):08x}" if len(before) == place - start and before.endswith(b"\n") else ""


@contextmanager
def journal_lock(file: FileIO) -> Generator[bool]:
    """Keep other copiers from a journal for a ``with`` block; yields whether that could be done.

    The lock is on the file itself: nothing is left behind, and a run that starts over has a new one.
    """
    taken = _lock(file)
    try:
        yield taken
    finally:
        if taken:
            _unlock(file)


def _lock(file: FileIO) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # a system without such locks: a store takes what is written twice only once
        return True
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def _unlock(file: FileIO) -> None:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)
    except (ImportError, OSError):
        return
