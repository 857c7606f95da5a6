"""Where a watched program is right now: one line behind its checksum, overwritten in place.

A file renamed over another would be whole for every reader, too, and takes ext4 a hundred times as long.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from trueloop.core.json_text import parse_json
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.live.folder import POSITION_NAME
from trueloop.runs.live.process_alive import is_alive

LINE_BYTES: Final = 1024  # bytes of the line
MAX_READ_ATTEMPTS: Final = 4  # at reading it while it is written
_CLOSED, _NO_LINK = getattr(os, "O_CLOEXEC", 0), getattr(os, "O_NOFOLLOW", 0)


def encode_position(position: Mapping[str, Any]) -> bytes:
    """Write a record behind its checksum, always as long."""
    text = encode_line(position).encode().strip()
    return b"%08x %s\n" % (zlib.crc32(text), text.ljust(LINE_BYTES - 10))


def decode_position(data: bytes) -> bytes | None:
    """Return the record that was sealed; None where it was being written just now."""
    seal, _, text = data.partition(b" ")
    text = text.strip()
    return text if seal == b"%08x" % zlib.crc32(text) else None


def write_position(folder: Path, position: Mapping[str, Any]) -> None:
    """Say where the program of a folder is.

    Raises:
        OSError: as the system says.
    """
    file = os.open(folder / POSITION_NAME, os.O_WRONLY | os.O_CREAT | _CLOSED | _NO_LINK, 0o600)
    try:
        os.write(file, encode_position(position))
    finally:
        os.close(file)


def read_position(folder: Path) -> dict[str, Any]:
    """Return what a program says of where it is; nothing where that cannot be read."""
    text = None
    try:
        file = os.open(folder / POSITION_NAME, os.O_RDONLY | _CLOSED | _NO_LINK | getattr(os, "O_NONBLOCK", 0))
        try:
            for _ in range(MAX_READ_ATTEMPTS):
                text = text or decode_position(os.pread(file, LINE_BYTES, 0))
        finally:
            os.close(file)
        told: Any = parse_json(text or b"{}")
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", told) if isinstance(told, dict) else {}


def is_running(position: Mapping[str, Any]) -> bool:
    """True where a program has not said that it has ended, and its process is there."""
    pid = position.get("pid")
    return position.get("ended") is None and type(pid) is int and is_alive(pid, str(position.get("mark") or ""))
