"""Refuse requests from other origins, since any web page can send requests to this machine or rebind a DNS name."""

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
POLICY: Final = {
    # 'self' for all resources: the page loads nothing from other origins
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # the browser asks every time; the answer is usually "not modified"
}


class SameOriginMiddleware:
    """Refuses requests whose Host header is not this machine's, or that a page from another origin sends."""

    def __init__(self, app: ASGIApp, *, message: str = "The lab answers its own page on this machine only.") -> None:
        self._app = app
        self._message = message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if its origin is trusted."""
        if scope["type"] == "lifespan" or _is_trusted(Headers(scope=scope)):
            await self._app(scope, receive, _with_policy(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # closing before accepting results in status 403
        else:
            await _forbid(send, self._message)


def _is_trusted(headers: Headers) -> bool:
    host = headers.get("host", "")
    origin = headers.get("origin")
    if _host_name(host) not in HOSTS:
        return False
    return origin is None or origin in (f"http://{host}", f"https://{host}")


def _host_name(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host


def _with_policy(send: Send) -> Send:
    async def send_with_policy(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in POLICY.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_policy


async def _forbid(send: Send, message: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": f"{message}\n".encode()})
