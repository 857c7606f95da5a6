"""A worker's end of its line to the server: JSON lines come in, texts and frames go out."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from typing import Any, Final

from trueloop.app.web.wire_format import FRAME, LENGTH, TEXT, decode_object, encode_json
from trueloop.core.errors import InvalidConfig

CHUNK_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 1 << 20  # bytes of one line; the server lets far less through


class Channel:
    """Reads and writes file descriptors; nothing else in the worker may write to them.

    Args:
        read_fd: lines of JSON, one object each, end with a newline.
        write_fd: takes messages, each behind its length.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read, self._write = read_fd, write_fd
        self._rest = b""

    def receive(self, timeout_s: float | None = 0.0) -> list[Mapping[str, Any]]:
        """Return the messages that have come, waiting up to ``timeout_s`` for the first; None waits for ever.

        Raises:
            EOFError: the server has hung up.
            InvalidConfig: a line is not a JSON object; it is the first to be read, and the lines after it are kept.
        """
        if b"\n" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], timeout_s)
            if not ready:
                return []
            chunk = os.read(self._read, CHUNK_BYTES)
            if not chunk or len(self._rest) > MAX_LINE_BYTES:
                raise EOFError
            self._rest += chunk
        messages: list[Mapping[str, Any]] = []
        while b"\n" in self._rest:
            line, rest = self._rest.split(b"\n", 1)
            try:
                messages.append(decode_object(line))
            except InvalidConfig:
                if messages:  # they count, and the line is refused when it is its turn
                    break
                self._rest = rest
                raise
            self._rest = rest
        return messages

    def send_json(self, message: Mapping[str, Any]) -> None:
        """Send a text: JSON for the page."""
        self._send(TEXT, encode_json(message).encode())

    def send_frame(self, data: bytes) -> None:
        """Send a frame, see `wire.frame`."""
        self._send(FRAME, data)

    def _send(self, kind: int, data: bytes) -> None:
        rest = memoryview(LENGTH.pack(len(data), kind) + data)
        while rest:
            rest = rest[os.write(self._write, rest) :]
