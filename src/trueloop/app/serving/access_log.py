"""A line for each request, and its count."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trueloop.app.serving.metrics import Metrics


class Access:
    """Logs and counts every answer; nothing of a request's body is written down."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, log: Callable[[str], None]) -> None:
        self._app, self._metrics, self._log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, sent, start_s = 500, 0, perf_counter()

        async def heard(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, heard)
        finally:
            seconds = perf_counter() - start_s
            self._metrics.request(scope["path"], status, seconds)
            client = (scope.get("client") or ("-",))[0]
            path = scope["path"][:100].encode("unicode_escape").decode()  # a line stays one line
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._log(f"{at} {client} {scope['method']} {path} {status} {1000 * seconds:.1f} ms {sent} bytes")
