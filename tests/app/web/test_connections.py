"""Connections that are too many, too slow or deaf are cut, and the others are answered."""

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
from trueloop.app.web.connections import Http, WebSocket


async def waits(socket: Socket) -> None:
    await socket.accept()
    await socket.receive()


async def speaks(socket: Socket) -> None:
    """Say much, and go when nobody listens."""
    await socket.accept()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            while True:
                await socket.send_bytes(bytes(1 << 20))


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connections, "MOST", 3)
    monkeypatch.setattr(connections, "SLOWEST_S", 0.3)
    monkeypatch.setattr(connections, "UNREAD", 1 << 12)
    app = Starlette(routes=[WebSocketRoute("/live", waits), WebSocketRoute("/speaks", speaks)])
    server = uvicorn.Server(uvicorn.Config(app, http=Http, ws=WebSocket, log_level="error", lifespan="off"))
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=asyncio.run, args=(server.serve([taken]),))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield taken.getsockname()[1]
    server.should_exit = True
    thread.join()


def answered(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/")
    status = connection.getresponse().status
    connection.close()
    return status == 404


def cut(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: a", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT"])
def test_a_request_that_does_not_come_is_not_waited_for(port: int, said: bytes):
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(said)
        slow.settimeout(20)
        while said.endswith(b"HT") and not slow.recv(1000).endswith(b"Not Found"):
            continue
        assert cut(slow)
    assert answered(port)


def test_too_many_are_cut_and_the_first_ones_are_not(port: int):
    with connect(f"ws://127.0.0.1:{port}/live") as first:
        several: list[Any] = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert cut(several[-1])
        time.sleep(0.5)
        first.ping().wait(20)  # a live page may be silent for as long as it likes
        for each in several:
            each.close()
    assert answered(port)


def opened(port: int, path: str) -> socket.socket:
    deaf = socket.create_connection(("127.0.0.1", port), timeout=20)
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    deaf.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n{upgrade}{key}\r\n".encode())
    return deaf


def test_pings_whose_answers_nobody_reads_end_the_connection(port: int):
    with opened(port, "/live") as deaf:
        ping = b"\x89\xfd" + b"\0" * 4 + b"x" * 125
        with pytest.raises(OSError, match="reset|Broken pipe"):
            for _ in range(100_000):
                deaf.sendall(ping * 100)
    with pytest.raises(ConnectionClosed), connect(f"ws://127.0.0.1:{port}/live") as one:
        one.send("so the next one is heard")
        one.recv(20)


def test_what_nobody_takes_is_not_kept_for_ever(port: int):
    with opened(port, "/speaks") as deaf, pytest.raises(OSError, match="reset|Broken pipe"):
        for _ in range(200):
            time.sleep(0.1)
            deaf.sendall(b"\x8a\x80" + b"\0" * 4)  # a pong nobody asked for
