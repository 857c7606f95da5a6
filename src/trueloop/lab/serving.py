"""Serve the lab's page, requests and live sessions until interrupted; only the workers import torch."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import os
import socket
import webbrowser
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from trueloop.app.lab_address import write_address
from trueloop.app.web.connections import HttpProtocol, WebSocketProtocol
from trueloop.app.web.same_origin import SameOriginMiddleware
from trueloop.core.errors import InvalidConfig
from trueloop.lab.api import RequestHandler
from trueloop.lab.example_run import stop_examples
from trueloop.lab.views.load import views
from trueloop.lab.visible_runs import VisibleRuns
from trueloop.lab.websocket import LiveSessions
from trueloop.lab.workers import Workers
from trueloop.runs.live.folder import live_folder
from trueloop.runs.live.run_list import any_running

ADDRESS: Final = "127.0.0.1"  # cannot be reached from the network, only through ssh -L
MAX_MESSAGE_BYTES: Final = 64 << 10
IDLE_CHECK_INTERVAL_S: Final = 60.0
MAX_DIAGNOSES: Final = 3  # largest number of open pages that try changes; each has several processes
STATIC: Final = Path(__file__).with_name("static")

mimetypes.add_type("text/javascript", ".js")  # some systems say text/plain, and browsers then refuse a module


def bind_port(port: int, *, host: str = ADDRESS, command: str = "trueloop lab") -> socket.socket:
    """Bind the port, so that the address is known before anything starts.

    Raises:
        InvalidConfig: the port is in use, or the host is not an address of this machine.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        subject = f"Port {port} of {host!r}" if host != ADDRESS else f"Port {port}"
        raise InvalidConfig(
            f"{subject} cannot be used: {str(getattr(error, 'strerror', '') or error).rstrip('.')}.",
            fix=f"{command} --port 0 takes a free port.",
        ) from None
    return bound


def serve(
    bound: socket.socket,
    runs: Path,
    *,
    open_browser: bool,
    on_ready: Callable[[str], None],
    idle_s: float | None = None,
) -> None:
    """Serve on a socket until Ctrl-C.

    Args:
        bound: a socket from `bind_port`.
        runs: a folder of runs that may be shown.
        open_browser: True to open the page in the user's browser.
        on_ready: called with the address once the server accepts connections.
        idle_s: stop also after so many seconds in which there was no request and no watched program ran.
    """
    app = IdleMonitor(build_app(runs))
    address = f"http://{ADDRESS}:{bound.getsockname()[1]}/"
    config = uvicorn.Config(
        app,
        log_level="warning",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
        server_header=False,
        proxy_headers=False,
    )

    def announce() -> None:
        write_address(os.environ, urlsplit(address).port or 0)
        on_ready(address)
        if open_browser:
            webbrowser.open(address)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(uvicorn.Server(config), bound, app, idle_s, announce))


async def _run(
    server: uvicorn.Server, bound: socket.socket, app: IdleMonitor, idle_s: float | None, announce: Callable[[], None]
) -> None:
    serving = asyncio.create_task(server.serve([bound]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    if server.started:
        announce()
    if idle_s is not None:
        idle = asyncio.create_task(app.wait_until_idle(idle_s, lambda: any_running(live_folder(os.environ))))
        await asyncio.wait([serving, idle], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
    await serving


def build_app(runs: Path) -> Starlette:
    """Build the server: ``GET /`` and its files, ``GET`` and ``POST /api/<page>``, WebSockets ``/live/<kind>``.

    Args:
        runs: a folder of runs that may be shown.
    """
    workers = Workers()
    handler = RequestHandler(workers, VisibleRuns(runs, live_folder(os.environ)))
    sessions = {"simulator": LiveSessions(workers), "diagnosis": LiveSessions(workers, max_sessions=MAX_DIAGNOSES)}

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        await workers.start()
        views()  # imported while the process above imports torch, not during the first request
        try:
            yield
        finally:
            stop_examples()
            await handler.stop()
            await workers.stop()

    async def live(socket: WebSocket) -> None:
        kind = socket.url.path.rpartition("/")[2]
        await sessions[kind].serve(socket, kind)

    return Starlette(
        routes=[
            Route("/api/{page}", handler.describe, methods=["GET"]),
            Route("/api/{page}", handler.answer, methods=["POST"]),
            *(WebSocketRoute(f"/live/{kind}", live) for kind in sessions),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[Middleware(SameOriginMiddleware), Middleware(GZipMiddleware, minimum_size=1024)],
        lifespan=lifespan,
    )


class IdleMonitor:
    """ASGI middleware that records when the last request ended, so that an unused lab can stop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0
        self._last_s = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request or a connection to the app, and record its end."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        started = False

        async def track_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self._open += 1
        try:
            await self._app(scope, receive, track_start)
        except asyncio.CancelledError:  # the server stops: the terminal shows no error, and the page retries
            if scope["type"] == "http" and not started:
                body = {"what": "The lab is being stopped.", "why": "", "fix": "", "stopping": True}
                await JSONResponse(body, 503)(scope, receive, send)
        finally:
            self._open -= 1
            self._last_s = monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request was answered; 0 while a connection is open."""
        return 0.0 if self._open else monotonic() - self._last_s

    async def wait_until_idle(self, idle_s: float, busy: Callable[[], bool]) -> None:
        """Return when no request has come for ``idle_s`` seconds and ``busy`` returns False.

        Args:
            idle_s: seconds.
            busy: returns True while there is another reason not to stop.
        """
        while self.idle_s < idle_s or busy():
            await asyncio.sleep(min(IDLE_CHECK_INTERVAL_S, idle_s / 4))
