"""Run the service until a stop signal, then finish the requests in flight."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Final

import uvicorn

from trueloop.app.serving.service import Service
from trueloop.app.web.connections import HttpProtocol

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SHUTDOWN_GRACE_S: Final = 5.0  # time after the request timeout before connections are closed


class Server(uvicorn.Server):
    """A uvicorn server that exits normally after a stop signal."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle SIGINT and SIGTERM in the main thread, and restore the handlers afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous_handlers = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second signal does not wait for requests in flight."""
        self._service.stopping = True
        super().handle_exit(sig, frame)


def create_server(service: Service, *, host: str, timeout_s: float) -> Server:
    """Create a server.

    Args:
        service: the service to run.
        host: address to bind to; with a loopback address, only host names of this machine are accepted.
        timeout_s: request timeout in seconds.
    """
    config = uvicorn.Config(
        service.build_app(local_only=is_loopback(host)),
        log_level="warning",
        access_log=False,
        http=HttpProtocol,
        ws="none",
        timeout_graceful_shutdown=int(timeout_s + SHUTDOWN_GRACE_S),
        server_header=False,
        proxy_headers=False,
    )
    return Server(config, service)


def run(server: Server, listening: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve on a socket until a signal, or until ``should_exit`` is set.

    Args:
        server: server from `create_server`.
        listening: bound socket.
        on_ready: function that is called when the server accepts requests.
    """
    asyncio.run(_run(server, listening, on_ready))


async def _run(server: Server, listening: socket.socket, on_ready: Callable[[], None]) -> None:
    server_task = asyncio.create_task(server.serve([listening]))
    while not server.started and not server_task.done():
        await asyncio.sleep(0.01)
    if server.started:
        on_ready()
    await server_task


def is_loopback(host: str) -> bool:
    """Return True for a host that other machines cannot reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
