"""Read complete lines of a growing file, a bounded chunk at a time."""

import os
import stat
from io import FileIO
from pathlib import Path
from typing import Final

from trueloop.core.errors import InvalidData
from trueloop.runs.tracking.journal_file import checksum_before

CHUNK_BYTES: Final = 2**20  # 50 ms of parsing
MAX_LINE_BYTES: Final = 2**22  # the longest lines hold a recipe's source and all packages


class Tail:
    """Reads a growing file from where the previous read stopped.

    Args:
        path: a regular file; a link is not followed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        """Bytes read so far, all of them complete lines."""
        self.size = 0
        """Size of the file in bytes at the last read."""
        self.changed_at = 0.0
        """Modification time at the last read, in seconds since 1970."""
        self.restarts = 0
        """How often the file was replaced and read from its beginning again."""
        self._inode = 0
        self._checksum = ""

    @property
    def remaining(self) -> int:
        """Bytes not read yet, including a torn last line."""
        return max(0, self.size - self.offset)

    def read_lines(self, chunk: int = CHUNK_BYTES) -> list[bytes]:
        """Return the next complete lines, about ``chunk`` bytes; empty if there are none.

        Raises:
            InvalidData: a line is longer than `MAX_LINE_BYTES`, or the path is not a regular file.
            OSError: the file cannot be read.
        """
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with FileIO(os.open(self._path, flags), "r") as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode):
                raise InvalidData(f"{self._path.name} is not a regular file.")
            self.size, self.changed_at = seen.st_size, seen.st_mtime
            if self.offset and (
                seen.st_ino != self._inode or seen.st_size < self.offset or not self._is_same_file(file)
            ):
                self.offset, self.restarts = 0, self.restarts + 1
            self._inode = seen.st_ino
            block = self._read_block(file, chunk)
            self.offset += len(block)
            self._checksum = checksum_before(file, self.offset)
        return [line + b"\n" for line in block.split(b"\n")[:-1]]

    def was_replaced(self) -> bool:
        """True if the file that was read was replaced or rewritten."""
        try:
            seen = self._path.lstat()
        except OSError:
            return False
        return seen.st_ino != self._inode or seen.st_size < self.offset

    def _is_same_file(self, file: FileIO) -> bool:
        return checksum_before(file, self.offset) == self._checksum

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
                    why="No run writes such lines, so the rest may be wrong as well.",
                )
            chunk = min(2 * chunk, MAX_LINE_BYTES)
