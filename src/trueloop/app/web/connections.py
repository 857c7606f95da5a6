"""Close connections that exceed a limit: too many, too slow to send a request, or not reading the response."""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_CONNECTIONS: Final = 400  # simultaneous connections; fewer than the file limit of any system
REQUEST_TIMEOUT_S: Final = 15.0  # time in which a request must arrive
MAX_IDLE_CHECKS: Final = 12  # a client may leave a response unread for this number of checks: three minutes
MAX_UNREAD_BYTES: Final = 1 << 20  # bytes that were sent to a page and that the page has not read


class HttpProtocol(H11Protocol):
    """HTTP with a time limit for requests to arrive, which uvicorn does not have."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._schedule_check()

    def _schedule_check(self, checks: int = 0) -> None:
        asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self._close_if_idle, self.cycle, checks)

    def _close_if_idle(self, last_request: object, checks: int) -> None:
        """Close the connection if no request arrived since the last check and no response is being sent."""
        if self.transport.get_protocol() is not self:  # upgraded to a WebSocket
            return
        no_new_request = self.cycle is last_request
        is_idle = last_request is None or self.cycle.response_complete or checks > MAX_IDLE_CHECKS
        if self.transport.is_closing() or (no_new_request and is_idle):
            self.transport.abort()
        else:
            self._schedule_check(checks + 1 if no_new_request else 0)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket that is closed if the client does not read; uvicorn would wait until the client has read all data."""

    def handle_ping(self) -> None:
        """Answer a ping."""
        super().handle_ping()
        if cast("Any", self.transport).get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Abort the connection `REQUEST_TIMEOUT_S` after its handler has ended."""
        super().on_task_complete(task)
        asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self.transport.abort)
