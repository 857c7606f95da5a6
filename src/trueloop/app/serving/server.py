"""Runs the service until it is told to stop, and then finishes what is in flight."""

from __future__ import annotations

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
SHUTDOWN_GRACE_S: Final = 5.0  # beyond a request's own time, until a connection is cut at the end


class Server(uvicorn.Server):
    """uvicorn, stopped by a signal without dying of it: it has done what it was told."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take SIGINT and SIGTERM, where this is the main thread, and give them back afterwards."""
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
        """Stop; a second signal does not wait for what is in flight."""
        self._service.stopping = True
        super().handle_exit(sig, frame)


def server(service: Service, *, host: str, timeout_s: float) -> Server:
    """Make a server that is ready to be run.

    Args:
        service: what answers.
        host: it is bound to; a loopback address is local_only.
        timeout_s: a request's own.
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


def run(made: Server, taken: socket.socket, *, say: Callable[[], None]) -> None:
    """Serve on a socket until a signal, or until ``should_exit`` is set.

    Args:
        made: by `server`.
        taken: from `lab.serving.listening`.
        say: called once requests are taken.
    """
    asyncio.run(_run(made, taken, say))


async def _run(made: Server, taken: socket.socket, say: Callable[[], None]) -> None:
    serving = asyncio.create_task(made.serve([taken]))
    while not made.started and not serving.done():
        await asyncio.sleep(0.01)
    if made.started:
        say()
    await serving


def is_loopback(host: str) -> bool:
    """True where nobody else on the network can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
