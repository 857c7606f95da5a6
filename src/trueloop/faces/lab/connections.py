"""Connections that cost too much are cut: too many, too slow to say what they want, or deaf to what they asked for."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MOST: Final = 400  # at once; below what a process may have open on any system
SLOWEST_S: Final = 15.0  # until a request has come; a page that is asked for says at once what it wants
UNREAD: Final = 1 << 20  # bytes that a page has not taken yet


class Http(H11Protocol):
    """HTTP in which a request that does not come is not waited for: uvicorn waits for it for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
        else:
            self._look_again()

    def _look_again(self) -> None:
        asyncio.get_running_loop().call_later(SLOWEST_S, self._look, self.cycle)

    def _look(self, before: object) -> None:
        """Cut a connection where no request has come since the last look, and none is being answered."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # it has become a WebSocket
            return
        if self.cycle is before and (before is None or self.cycle.response_complete):
            self.transport.abort()
        else:
            self._look_again()


class WebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that is cut where nobody reads it: pings are answered whether the answers are taken or not."""

    def handle_ping(self) -> None:
        """Answer a ping."""
        super().handle_ping()
        if cast("Any", self.transport).get_write_buffer_size() > UNREAD:
            self.transport.abort()
