"""Read the body of a request within limits of size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request


class RequestError(Exception):
    """A request that gets an error status and a message."""

    def __init__(self, status: int, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.body = {"what": what, "why": "", "fix": fix}


async def read_json_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """Read the body of a request whose content type is JSON.

    Args:
        request: the request, whose body has not been read yet.
        max_bytes: maximum size of the body.
        timeout_s: maximum number of seconds in which the body must arrive.

    Raises:
        RequestError: the body has another content type, is too large, or arrives too slowly.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # the only type that a form on another site cannot send
        raise RequestError(415, f"The request has content type {content_type[:40]!r}.", "Send application/json.")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise RequestError(413, f"The request is larger than {max_bytes} bytes.", "Send less data.")
    except TimeoutError:
        raise RequestError(
            408, f"The request took more than {timeout_s:g} s to arrive.", "Send it without pauses."
        ) from None
    except ClientDisconnect:
        raise RequestError(400, "The request was not sent completely.") from None
    return bytes(body)
