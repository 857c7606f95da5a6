"""The lab's server: files of the page, questions, live sessions. It never imports torch; its workers do."""

from __future__ import annotations

import contextlib
import mimetypes
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from trueloop.app.web.same_origin import Guard
from trueloop.lab.api import Answering
from trueloop.lab.visible_runs import RunsSeen
from trueloop.lab.websocket import Sessions
from trueloop.lab.workers import Workers
from trueloop.runs.live.folder import live_folder

STATIC: Final = Path(__file__).with_name("static")

mimetypes.add_type("text/javascript", ".js")  # some systems say text/plain, and browsers then refuse a module


def application(runs: Path) -> Starlette:
    """Build the server: ``GET /`` and its files, ``GET`` and ``POST /api/<page>``, WebSocket ``/live/simulator``.

    Args:
        runs: a folder of runs that may be shown.
    """
    workers = Workers()
    seen = RunsSeen(runs, live_folder(os.environ))
    answering, sessions = Answering(workers, seen), Sessions(workers)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        await workers.start()
        try:
            yield
        finally:
            await answering.stop()
            await workers.stop()

    async def simulator(socket: WebSocket) -> None:
        await sessions.serve(socket, "simulator")

    return Starlette(
        routes=[
            Route("/api/{page}", answering.describe, methods=["GET"]),
            Route("/api/{page}", answering.answer, methods=["POST"]),
            WebSocketRoute("/live/simulator", simulator),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[Middleware(Guard), Middleware(GZipMiddleware, minimum_size=1024)],
        lifespan=lifespan,
    )
