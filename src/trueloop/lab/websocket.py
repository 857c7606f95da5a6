"""Relays live sessions: each connects one WebSocket of a browser with its own worker."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from trueloop.app.web.wire_format import decode_object, encode_json, error_body
from trueloop.core.errors import InvalidConfig
from trueloop.lab.workers import Worker, WorkerLost, Workers

MAX_SESSIONS: Final = 24  # largest number of sessions that are open at the same time
IDLE_TIMEOUT_S: Final = 600.0  # a page is idle that sends nothing for so long, not even an acknowledged frame
SEND_TIMEOUT_S: Final = 60.0  # time in which the page must read a message
BUSY, IDLE, LOST = 4001, 4002, 4003
"""Close codes that tell the page why a connection is closed."""
UNREAD_REASON: Final = "The page did not read its messages, so its worker was stopped."


class LiveSessions:
    """The live sessions of one server."""

    def __init__(
        self,
        workers: Workers,
        *,
        max_sessions: int = MAX_SESSIONS,
        idle_s: float = IDLE_TIMEOUT_S,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        self._workers, self._max_sessions = workers, max_sessions
        self._idle_s, self._send_timeout_s = idle_s, send_timeout_s
        self._open = 0

    @property
    def count(self) -> int:
        """Number of open sessions."""
        return self._open

    async def serve(self, socket: WebSocket, kind: str) -> None:
        """Relay messages until one side disconnects."""
        await socket.accept()
        if self._open >= self._max_sessions:
            await socket.close(BUSY, f"{self._max_sessions} sessions run already: close another tab of the lab")
            return
        self._open += 1
        try:
            worker = await self._workers.fork(kind)
            try:
                code, reason = await _first_result(
                    self._relay_to_worker(socket, worker), self._relay_to_page(socket, worker)
                )
            finally:
                await worker.end()
        except WorkerLost as error:
            code, reason = LOST, f"The process that trains has ended: {error}"[:100]
        finally:
            self._open -= 1
        # The browser may have disconnected, or may not read.
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
            async with asyncio.timeout(self._send_timeout_s):
                await socket.close(code, reason)

    async def _relay_to_worker(self, socket: WebSocket, worker: Worker) -> tuple[int, str]:
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    text = await socket.receive_text()
            except TimeoutError:
                return IDLE, "The page was idle, so its worker was stopped."
            except (WebSocketDisconnect, KeyError):  # KeyError: bytes, which the page never sends
                return 1000, ""
            try:
                decode_object(text)
            except InvalidConfig as error:
                if not await self._send(socket, encode_json({"kind": "refused", **error_body(error)})):
                    return IDLE, UNREAD_REASON
            else:
                await worker.send(text)

    async def _relay_to_page(self, socket: WebSocket, worker: Worker) -> tuple[int, str]:
        while await self._send(socket, await worker.receive()):
            continue
        return IDLE, UNREAD_REASON

    async def _send(self, socket: WebSocket, message: str | bytes) -> bool:
        """Send a message; return false if the page does not read it."""
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await (socket.send_text(message) if isinstance(message, str) else socket.send_bytes(message))
        except (TimeoutError, RuntimeError, WebSocketDisconnect):
            return False
        return True


async def _first_result(*coroutines: Coroutine[Any, Any, tuple[int, str]]) -> tuple[int, str]:
    """Return the result of the first coroutine to finish, and cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
