"""Read and write the current position of a watched program: a line with its checksum, which is overwritten in place.

Replacing the file by a new one would also be safe for readers, but takes a hundred times as long on ext4.
"""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trueloop.core.json_text import parse_json_object
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.live.folder import POSITION_NAME, PRIVATE_FLAGS, READ_FLAGS
from trueloop.runs.live.process_alive import is_alive

LINE_BYTES: Final = 1024  # including the checksum and padding
MAX_READ_ATTEMPTS: Final = 4  # the writer may be in the middle of a write


def encode_position(position: Mapping[str, Any]) -> bytes:
    """Encode a position as a line of fixed length, preceded by its checksum."""
    text = encode_line(position).encode().strip()
    return b"%08x %s\n" % (zlib.crc32(text), text.ljust(LINE_BYTES - 10))


def decode_position(data: bytes) -> bytes | None:
    """Return the JSON of an encoded position; None if its checksum does not match because a write is in progress."""
    checksum, _, text = data.partition(b" ")
    text = text.strip()
    return text if checksum == b"%08x" % zlib.crc32(text) else None


def write_position(folder: Path, position: Mapping[str, Any]) -> None:
    """Write the current position of a program into its folder.

    Raises:
        OSError: the file cannot be written.
    """
    file = os.open(folder / POSITION_NAME, os.O_WRONLY | os.O_CREAT | PRIVATE_FLAGS, 0o600)
    try:
        os.write(file, encode_position(position))
    finally:
        os.close(file)


def read_position(folder: Path) -> dict[str, Any]:
    """Read the current position of a program; empty if it cannot be read."""
    text = None
    try:
        file = os.open(folder / POSITION_NAME, READ_FLAGS)
        try:
            for _ in range(MAX_READ_ATTEMPTS):
                text = text or decode_position(os.pread(file, LINE_BYTES, 0))
        finally:
            os.close(file)
    except OSError:
        return {}
    return parse_json_object(text or b"")


def is_running(position: Mapping[str, Any]) -> bool:
    """Return True if a program has not recorded its end and its process is alive."""
    pid = position.get("pid")
    return position.get("ended") is None and type(pid) is int and is_alive(pid, str(position.get("start_ticks") or ""))
