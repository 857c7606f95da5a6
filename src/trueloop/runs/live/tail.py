"""The whole lines of a file that somebody else appends to, a bounded piece at a time."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path
from typing import Final

from trueloop.core.errors import InvalidData
from trueloop.runs.tracking.journal_file import checksum_before

CHUNK_BYTES: Final = 2**20  # bytes read at once; 50 ms of parsing
MAX_LINE_BYTES: Final = 2**22  # bytes of a line; the longest ones hold a recipe's source and every package


class Tail:
    """Reads on from where it stopped.

    Args:
        path: of a regular file; a link is not followed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        """Bytes read so far, all of them whole lines."""
        self.size = 0
        """Bytes of the file when it was last looked at."""
        self.changed_at = 0.0
        """When it was last written to, seconds since 1970."""
        self.restarts = 0
        """Times it was found to be another file, and read from its beginning again."""
        self._inode = 0
        self._checksum = ""

    @property
    def remaining(self) -> int:
        """Bytes that are left to read, a torn last line among them."""
        return max(0, self.size - self.offset)

    def read_lines(self, chunk: int = CHUNK_BYTES) -> list[bytes]:
        """Return the next whole lines, about so many bytes; none where there are none.

        Raises:
            InvalidData: a line is longer than any that a run writes, or this is no regular file.
            OSError: as the system says.
        """
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with FileIO(os.open(self._path, flags), "r") as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode):
                raise InvalidData(f"{self._path.name} is not a regular file.")
            self.size, self.changed_at = seen.st_size, seen.st_mtime
            if self.offset and (seen.st_ino != self._inode or seen.st_size < self.offset or not self._is_same_file(file)):
                self.offset, self.restarts = 0, self.restarts + 1
            self._inode = seen.st_ino
            block = self._read_block(file, chunk)
            self.offset += len(block)
            self._checksum = checksum_before(file, self.offset)
        return [line + b"\n" for line in block.split(b"\n")[:-1]]

    def was_replaced(self) -> bool:
        """True where another file has taken the place of the one that was read, or it was written anew."""
        try:
            seen = self._path.lstat()
        except OSError:
            return False
        return seen.st_ino != self._inode or seen.st_size < self.offset

    def _is_same_file(self, file: FileIO) -> bool:
        return checksum_before(file, self.offset) == self._checksum

    def _read_block(self, file: FileIO, piece: int) -> bytes:
        """Read whole lines; a line that is longer than a piece is read as a whole."""
        while True:
            file.seek(self.offset)
            block = file.read(piece) or b""
            whole = block[: block.rfind(b"\n") + 1]
            if whole or len(block) < piece:
                return whole
            if piece >= MAX_LINE_BYTES:
                raise InvalidData(
                    f"{self._path.name} has a line of more than {MAX_LINE_BYTES // 2**20} MiB.",
                    why="No run writes one, so the rest cannot be trusted.",
                )
            piece = min(2 * piece, MAX_LINE_BYTES)
