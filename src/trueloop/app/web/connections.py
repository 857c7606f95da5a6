"""Closes connections that exceed a limit: too many, too slow to send a request, or not reading the response."""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_CONNECTIONS: Final = 400  # open at the same time; below the file limit of any system
REQUEST_TIMEOUT_S: Final = 15.0  # for a request to arrive
MAX_IDLE_CHECKS: Final = 12  # checks of one response that the client does not read: three minutes
MAX_UNREAD_BYTES: Final = 1 << 20  # sent to a page and not read yet


class HttpProtocol(H11Protocol):
    """HTTP with a time limit for requests to arrive, which uvicorn does not have."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._schedule_check()

    def _schedule_check(self, checks: int = 0) -> None:
        asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self._close_if_idle, self.cycle, checks)

    def _close_if_idle(self, before: object, checks: int) -> None:
        """Close the connection if no request came since the last check and none is being answered."""
        if self.transport.get_protocol() is not self:  # upgraded to a WebSocket
            return
        same = self.cycle is before
        if self.transport.is_closing() or (
            same and (before is None or self.cycle.response_complete or checks > MAX_IDLE_CHECKS)
        ):
            self.transport.abort()
        else:
            self._schedule_check(checks + 1 if same else 0)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket that is closed when the client does not read; uvicorn would wait until it has read everything."""

    def handle_ping(self) -> None:
        """Answer a ping."""
        super().handle_ping()
        if cast("Any", self.transport).get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Abort what is left of a connection after its handler has ended."""
        super().on_task_complete(task)
        asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self.transport.abort)
