"""Whether anybody visits: a lab that nobody started by hand ends when nobody has looked at it for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOK_S: Final = 60.0  # between two looks at the clock
_stopping: Final = JSONResponse({"what": "The lab is being stopped.", "why": "", "fix": "", "stopping": True}, 503)


class _Sending:
    """Sends, and knows whether it has begun to."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


class Lively:
    """Passes everything on, and knows when it last did."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0
        self._last_s = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request or a connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        self._open += 1
        sending = _Sending(send)
        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:  # the server stops: to the terminal no fault, and the page asks again
            if scope["type"] == "http" and not sending.begun:
                await _stopping(scope, receive, send)
        finally:
            self._open -= 1
            self._last_s = monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request was answered; 0 while a connection is open."""
        return 0.0 if self._open else monotonic() - self._last_s

    async def until_idle(self, idle_s: float, busy: Callable[[], bool]) -> None:
        """Return when nobody has visited for so long.

        Args:
            idle_s: seconds.
            busy: true while there is a reason to stay.
        """
        while self.idle_s < idle_s or busy():
            await asyncio.sleep(min(LOOK_S, idle_s / 4))
