"""Connects a worker to the server: receives JSON lines, sends JSON messages and binary frames."""

import os
import select
from collections.abc import Mapping
from typing import Any, Final

from trueloop.app.web.wire_format import FRAME, LENGTH, TEXT, decode_object, encode_json
from trueloop.core.errors import InvalidConfig

CHUNK_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 1 << 20  # far more than the server sends


class Channel:
    """The only reader and writer of the worker's file descriptors.

    Args:
        read_fd: file descriptor that yields JSON lines, one object each.
        write_fd: file descriptor that takes messages, each prefixed with its length.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read, self._write = read_fd, write_fd
        self._unparsed = b""

    def receive(self, timeout_s: float | None = 0.0) -> list[Mapping[str, Any]]:
        """Return the received messages, waiting up to ``timeout_s`` for the first; None waits without limit.

        Raises:
            EOFError: the server has disconnected.
            InvalidConfig: the first line is not a JSON object; the lines after it stay buffered.
        """
        if b"\n" not in self._unparsed:
            ready, _, _ = select.select([self._read], [], [], timeout_s)
            if not ready:
                return []
            chunk = os.read(self._read, CHUNK_BYTES)
            if not chunk or len(self._unparsed) > MAX_LINE_BYTES:
                raise EOFError
            self._unparsed += chunk
        messages: list[Mapping[str, Any]] = []
        while b"\n" in self._unparsed:
            line, remaining = self._unparsed.split(b"\n", 1)
            try:
                messages.append(decode_object(line))
            except InvalidConfig:
                if messages:  # the invalid line is reported by the next call
                    break
                self._unparsed = remaining
                raise
            self._unparsed = remaining
        return messages

    def send_json(self, message: Mapping[str, Any]) -> None:
        """Send a JSON message for the page."""
        self._send(TEXT, encode_json(message).encode())

    def send_frame(self, data: bytes) -> None:
        """Send a frame, see `wire_format.encode_frame`."""
        self._send(FRAME, data)

    def _send(self, kind: int, data: bytes) -> None:
        unsent = memoryview(LENGTH.pack(len(data), kind) + data)
        while unsent:
            unsent = unsent[os.write(self._write, unsent) :]
