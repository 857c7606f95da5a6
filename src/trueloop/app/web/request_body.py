"""The body of a request, bounded in size and time, whoever sends it."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request


class Refused(Exception):
    """A request that is answered with a status and words."""

    def __init__(self, status: int, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.words = {"what": what, "why": "", "fix": fix}


async def json_body(request: Request, *, largest: int, slowest_s: float) -> bytes:
    """Read the body of a request that says it is JSON.

    Args:
        request: not read yet.
        largest: bytes it may have.
        slowest_s: seconds it may take to arrive.

    Raises:
        Refused: it is of another type, too large, or too slow.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a form of another site could send anything else unasked
        raise Refused(415, f"A question of type {kind[:40]!r}.", "Send application/json.")
    body = bytearray()
    try:
        async with asyncio.timeout(slowest_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > largest:
                    raise Refused(413, f"A question of more than {largest} bytes.", "Ask for less.")
    except TimeoutError:
        raise Refused(408, f"A question that took more than {slowest_s:g} s to arrive.", "Send it at once.") from None
    except ClientDisconnect:
        raise Refused(400, "A question that was not sent to its end.") from None  # nobody hears it
    return bytes(body)
