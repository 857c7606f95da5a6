"""Connections that cost too much are cut: too many, too slow to say what they want, or deaf to what they asked for."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MOST: Final = 400  # at once; below what a process may have open on any system
SLOWEST_S: Final = 15.0  # until a request has come; a page that is asked for says at once what it wants
LOOKS: Final = 12  # at one answer that is not taken, until nobody is thought to want it: three minutes
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

    def _look_again(self, looks: int = 0) -> None:
        asyncio.get_running_loop().call_later(SLOWEST_S, self._look, self.cycle, looks)

    def _look(self, before: object, looks: int) -> None:
        """Cut a connection where no request has come since the last look, and none is being answered."""
        if self.transport.get_protocol() is not self:  # it has become a WebSocket
            return
        same = self.cycle is before
        if self.transport.is_closing() or (same and (before is None or self.cycle.response_complete or looks > LOOKS)):
            self.transport.abort()
        else:
            self._look_again(looks + 1 if same else 0)


class WebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that is cut where nobody reads it.

    uvicorn answers pings whether the answers are taken or not, and closes only when all is taken.
    """

    def handle_ping(self) -> None:
        """Answer a ping."""
        super().handle_ping()
        if cast("Any", self.transport).get_write_buffer_size() > UNREAD:
            self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """End what is left of a connection that nobody serves any more."""
        super().on_task_complete(task)
        asyncio.get_running_loop().call_later(SLOWEST_S, self.transport.abort)
