"""Runs the lab's server until it is interrupted, and opens the page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import webbrowser
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn

from trueloop.app.lab_address import write_address
from trueloop.app.web.connections import Http, WebSocket
from trueloop.core.errors import InvalidConfig
from trueloop.lab.idle_shutdown import Lively
from trueloop.lab.server import application
from trueloop.runs.live.folder import live_folder
from trueloop.runs.live.run_list import any_running

ADDRESS: Final = "127.0.0.1"  # nobody else on the network; a class reaches it through ssh -L
LARGEST_MESSAGE: Final = 64 << 10


def listening(port: int, *, host: str = ADDRESS, command: str = "trueloop lab") -> socket.socket:
    """Take the port, so that the address is known before anything starts.

    Raises:
        InvalidConfig: somebody else has it, or the host is none of this machine's.
    """
    taken = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((host, port))
    except (OSError, OverflowError) as error:
        taken.close()
        at = f"Port {port} of {host!r}" if host != ADDRESS else f"Port {port}"
        raise InvalidConfig(
            f"{at} cannot be used: {str(getattr(error, 'strerror', '') or error).rstrip('.')}.",
            fix=f"{command} --port 0 takes one that is free.",
        ) from None
    return taken


def serve(
    taken: socket.socket, runs: Path, *, opened: bool, say: Callable[[str], None], idle_s: float | None = None
) -> None:
    """Serve on a socket until Ctrl-C.

    Args:
        taken: from `listening`.
        runs: a folder of runs that may be shown.
        opened: open the page in the user's browser.
        say: told the address, when the page can be read there.
        idle_s: end also after so many seconds without a visitor and without a watched program that runs.
    """
    app = Lively(application(runs))
    address = f"http://{ADDRESS}:{taken.getsockname()[1]}/"
    config = uvicorn.Config(
        app,
        log_level="warning",
        http=Http,
        ws=WebSocket,
        ws_max_size=LARGEST_MESSAGE,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
        server_header=False,
        proxy_headers=False,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(uvicorn.Server(config), taken, lambda: _ready(address, opened, say), _idle(app, idle_s)))


async def _run(
    server: uvicorn.Server, taken: socket.socket, ready: Callable[[], None], idle: Coroutine[Any, Any, None] | None
) -> None:
    serving = asyncio.create_task(server.serve([taken]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    if server.started:
        ready()
    if idle is not None:
        await asyncio.wait([serving, asyncio.create_task(idle)], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
    await serving


def _idle(app: Lively, idle_s: float | None) -> Coroutine[Any, Any, None] | None:
    return None if idle_s is None else app.until_idle(idle_s, lambda: any_running(live_folder(os.environ)))


def _ready(address: str, opened: bool, say: Callable[[str], None]) -> None:
    write_address(os.environ, urlsplit(address).port or 0)
    say(address)
    if opened:
        webbrowser.open(address)
