"""Read complete lines of a growing file, a bounded chunk at a time."""

import os
import stat
from io import FileIO
from pathlib import Path
from typing import Final

from trueloop.core.errors import InvalidData
from trueloop.runs.live.folder import READ_FLAGS
from trueloop.runs.tracking.journal_file import checksum_before

CHUNK_BYTES: Final = 2**20  # parsing this takes 50 ms
MAX_LINE_BYTES: Final = 2**22  # the longest lines hold a recipe's source and all packages


class Tail:
    """Reads the new lines of a growing file.

    Args:
        path: a regular file; a link is not followed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        """Number of bytes read so far; only complete lines are read."""
        self.size = 0
        """Size of the file in bytes at the last read."""
        self.changed_at = 0.0
        """Modification time at the last read, in seconds since 1970."""
        self.restarts = 0
        """Number of times that the file was replaced and read from its beginning again."""
        self._inode = 0
        self._checksum = ""

    @property
    def remaining(self) -> int:
        """Number of bytes not read yet, including a torn last line."""
        return max(0, self.size - self.offset)

    def read_lines(self, chunk: int = CHUNK_BYTES) -> list[bytes]:
        """Return the next complete lines, about ``chunk`` bytes; empty if there are none.

        Raises:
            InvalidData: a line is longer than `MAX_LINE_BYTES`, or the path is not a regular file.
            OSError: the file cannot be read.
        """
        with FileIO(os.open(self._path, READ_FLAGS), "r") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise InvalidData(f"{self._path.name} is not a regular file.")
            self.size, self.changed_at = info.st_size, info.st_mtime
            is_same_file = info.st_ino == self._inode and checksum_before(file, self.offset) == self._checksum
            if self.offset and (info.st_size < self.offset or not is_same_file):
                self.offset, self.restarts = 0, self.restarts + 1
            self._inode = info.st_ino
            block = self._read_block(file, chunk)
            self.offset += len(block)
            self._checksum = checksum_before(file, self.offset)
        return [line + b"\n" for line in block.split(b"\n")[:-1]]

    def was_replaced(self) -> bool:
        """Return True if the file was replaced or rewritten since the last read."""
        try:
            info = self._path.lstat()
        except OSError:
            return False
        return info.st_ino != self._inode or info.st_size < self.offset

    def _read_block(self, file: FileIO, chunk: int) -> bytes:
        """Read complete lines; a line longer than a chunk is read completely."""
        while True:
            file.seek(self.offset)
            block = file.read(chunk) or b""
            lines = block[: block.rfind(b"\n") + 1]
            if lines or len(block) < chunk:
                return lines
            if chunk >= MAX_LINE_BYTES:
                raise InvalidData(
                    f"{self._path.name} has a line of more than {MAX_LINE_BYTES // 2**20} MiB.",
                    why="No run writes such lines, so other lines may be wrong as well.",
                )
            chunk = min(2 * chunk, MAX_LINE_BYTES)
