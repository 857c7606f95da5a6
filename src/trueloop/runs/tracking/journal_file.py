"""Read complete lines of a journal that another process writes, and lock it against concurrent syncs."""

import errno
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import FileIO

BLOCK_BYTES = 1 << 20
# Errors of a file system without locks; EBADF: NFS does not lock files that are opened for reading.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}


def complete_lines(file: FileIO, start: int, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield complete lines from ``start`` on, each with its byte offset; a torn last line is not yielded.

    Args:
        file: the journal, opened unbuffered, because a torn line may be truncated and rewritten after it was read.
        start: byte offset of the beginning of a line.
        upto: offset before which a line must start to be yielded; None = no limit.
    """
    offset, partial_line = start, b""
    file.seek(start)
    while block := file.read(BLOCK_BYTES):
        *lines, partial_line = (partial_line + block).split(b"\n")
        for line in lines:
            if upto is not None and offset >= upto:
                return
            yield offset, line + b"\n"
            offset += len(line) + 1
        file.seek(offset + len(partial_line))


def checksum_before(file: FileIO, offset: int) -> str:
    """Return a checksum of up to 4096 bytes before an offset; "" if no complete line ends there."""
    start = max(0, offset - 4096)
    file.seek(start)
    block = file.read(offset - start) or b""
    return f"{zlib.crc32(block):08x}" if len(block) == offset - start and block.endswith(b"\n") else ""


@contextmanager
def journal_lock(file: FileIO) -> Generator[bool]:
    """Lock a journal against other syncs for a ``with`` block; yield True if the lock was acquired.

    The journal itself is locked, so no lock file remains, and a run that starts over has a new lock.
    """
    acquired = _lock(file)
    try:
        yield acquired
    finally:
        if acquired:
            _unlock(file)


def _lock(file: FileIO) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no file locks on this system: stores ignore duplicate writes
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
