"""Whether anybody visits: a lab that nobody started by hand ends when nobody has looked at it for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

LOOK_S: Final = 60.0  # between two looks at the clock


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
        try:
            await self._app(scope, receive, send)
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
