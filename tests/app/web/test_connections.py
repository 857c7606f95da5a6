"""Too many, slow or unread connections are closed, and the others are is_answered."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket as Socket
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from trueloop.app.web import connections
from trueloop.app.web.connections import HttpProtocol, WebSocketProtocol


async def hold_open(socket: Socket) -> None:
    await socket.accept()
    await socket.receive()


async def send_much(socket: Socket) -> None:
    """Send much, and stop when the client does not read."""
    await socket.accept()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            while True:
                await socket.send_bytes(bytes(1 << 20))


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connections, "MAX_UNREAD_BYTES", 1 << 12)
    app = Starlette(routes=[WebSocketRoute("/live", hold_open), WebSocketRoute("/send_much", send_much)])
    server = uvicorn.Server(
        uvicorn.Config(app, http=HttpProtocol, ws=WebSocketProtocol, log_level="error", lifespan="off")
    )
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=asyncio.run, args=(server.serve([taken]),))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield taken.getsockname()[1]
    server.should_exit = True
    thread.join()


def is_answered(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/")
    status = connection.getresponse().status
    connection.close()
    return status == 404


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "request_start", [b"", b"GET / HTTP/1.1\r\nHost: a", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT"]
)
def test_a_request_that_does_not_arrive_times_out(port: int, request_start: bytes):
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(request_start)
        slow.settimeout(20)
        while request_start.endswith(b"HT") and not slow.recv(1000).endswith(b"Not Found"):
            continue
        assert is_closed(slow)
    assert is_answered(port)


def test_too_many_connections_close_the_newest_only(port: int):
    with connect(f"ws://127.0.0.1:{port}/live") as first:
        several: list[Any] = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert is_closed(several[-1])
        time.sleep(0.5)
        first.ping().wait(20)  # a live page may be silent for as long as it likes
        for each in several:
            each.close()
    assert is_answered(port)


def open_websocket(port: int, path: str) -> socket.socket:
    unread = socket.create_connection(("127.0.0.1", port), timeout=20)
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    unread.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n{upgrade}{key}\r\n".encode())
    return unread


def test_unread_pongs_close_the_connection(port: int):
    with open_websocket(port, "/live") as unread:
        ping = b"\x89\xfd" + b"\0" * 4 + b"x" * 125
        with pytest.raises(OSError, match="reset|Broken pipe"):
            for _ in range(100_000):
                unread.sendall(ping * 100)
    with pytest.raises(ConnectionClosed), connect(f"ws://127.0.0.1:{port}/live") as one:
        one.send("so the next one is received")
        one.recv(20)


def test_unread_messages_are_not_buffered_without_limit(port: int):
    with open_websocket(port, "/send_much") as unread, pytest.raises(OSError, match="reset|Broken pipe"):
        for _ in range(200):
            time.sleep(0.1)
            unread.sendall(b"\x8a\x80" + b"\0" * 4)  # an unsolicited pong
