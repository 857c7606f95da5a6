"""Runs the service until a stop signal, then finishes the requests in flight."""

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
SHUTDOWN_GRACE_S: Final = 5.0  # beyond the request timeout, before connections are closed


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
        before = {each: signal.signal(each, self.handle_exit) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second signal does not wait for requests in flight."""
        self._service.stopping = True
        super().handle_exit(sig, frame)


def create_server(service: Service, *, host: str, timeout_s: float) -> Server:
    """Create a server.

    Args:
        service: the service to run.
        host: address it is bound to; a loopback address only accepts host names of this machine.
        timeout_s: request timeout.
    """
    config = uvicorn.Config(
        service.application(local_only=is_loopback(host)),
        log_level="warning",
        access_log=False,
        http=HttpProtocol,
        ws="none",
        timeout_graceful_shutdown=int(timeout_s + SHUTDOWN_GRACE_S),
        server_header=False,
        proxy_headers=False,
    )
    return Server(config, service)


def run(created: Server, listening: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve on a socket until a signal, or until ``should_exit`` is set.

    Args:
        created: server from `create_server`.
        listening: bound socket.
        on_ready: called once requests are accepted.
    """
    asyncio.run(_run(created, listening, on_ready))


async def _run(created: Server, listening: socket.socket, on_ready: Callable[[], None]) -> None:
    serving = asyncio.create_task(created.serve([listening]))
    while not created.started and not serving.done():
        await asyncio.sleep(0.01)
    if created.started:
        on_ready()
    await serving


def is_loopback(host: str) -> bool:
    """Return True where other machines cannot reach the host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
