"""Live sessions are independent, limited in number, and closed with a reason; hostile messages are refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from trueloop.lab.websocket import BUSY, IDLE, LOST, LiveSessions
from trueloop.lab.workers import WorkerLost


def address(lab: str) -> str:
    return f"ws://{urlsplit(lab).netloc}/live/simulator"


def wait_for_message(socket: ClientConnection, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        message = socket.recv(timeout=60)
        if isinstance(message, str) and is_wanted(json.loads(message)):
            return json.loads(message)
    raise AssertionError("the message did not arrive")


def kind(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda message: message["kind"] == name


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_another_origin_cannot_open_a_session(lab: str, origin: Any):
    with pytest.raises(InvalidStatus) as refused, connect(address(lab), origin=origin):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "message",
    [
        "what?",
        "[]",
        '{"do": NaN}',
        '{"do": "nonsense"}',
        '{"do": "start", "config": {"hidden": [1000000000]}, "bugs": [], "points": []}',
        '{"do": "start", "config": {"epochs": 1e9}, "bugs": [], "points": []}',
        '{"do": "start", "config": {"__class__": 1}, "bugs": [], "points": []}',
        '{"do": "start", "config": {}, "bugs": ["__import__"], "points": []}',
        '{"do": "edit", "parameter": "__class__", "index": [0], "value": 1}',
        '{"do": "step", "updates": -1}',
        '{"do": ' + "[" * 900 + "]" * 900 + "}",
        '{"do":\n"nonsense"}',
    ],
)
def test_an_invalid_message_is_refused_and_the_session_continues(lab: str, message: str):
    with connect(address(lab)) as socket:
        wait_for_message(socket, kind("ready"))
        socket.send(message)
        refused = wait_for_message(socket, kind("refused"))
        assert refused["what"]
        assert refused["fix"]
        socket.send(json.dumps({"do": "start", "config": {}, "bugs": [], "points": []}))
        assert wait_for_message(socket, kind("started"))["config"]["dataset"] == "spiral"


def test_a_message_that_is_too_large_closes_the_session(lab: str):
    with pytest.raises(ConnectionClosed), connect(address(lab)) as socket:
        wait_for_message(socket, kind("ready"))
        socket.send("x" * (1 << 20))
        wait_for_message(socket, kind("never"))


def test_sessions_are_independent(lab: str):
    with connect(address(lab)) as first, connect(address(lab)) as second:
        for socket, seed in ((first, 1), (second, 2)):
            wait_for_message(socket, kind("ready"))
            socket.send(json.dumps({"do": "start", "config": {"seed": seed}, "bugs": [], "points": []}))
        assert [wait_for_message(socket, kind("started"))["config"]["seed"] for socket in (first, second)] == [1, 2]


class Socket:
    """The socket of a browser that sends and reads nothing."""

    def __init__(self) -> None:
        self.closed: tuple[int, str] | None = None
        self.accepted = False

    async def accept(self) -> None:
        self.accepted = True

    async def close(self, code: int, reason: str) -> None:
        self.closed = code, reason

    async def receive_text(self) -> str:
        await asyncio.sleep(3600)
        return ""

    async def send_text(self, text: str) -> None:
        await asyncio.sleep(3600)  # it reads nothing


class Worker:
    def __init__(self, *, dies: bool = False, sends: bool = False) -> None:
        self.dies, self.sends, self.ended = dies, sends, False

    async def receive(self) -> str:
        if self.sends:
            return "{}"
        if self.dies:
            raise WorkerLost("killed")
        await asyncio.sleep(3600)
        return ""

    async def end(self) -> None:
        self.ended = True


class Workers:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    async def fork(self, kind: str) -> Worker:
        return self.worker


@pytest.mark.parametrize(
    ("worker", "limits", "code"),
    [
        (Worker(), {"max_sessions": 0}, BUSY),
        (Worker(), {"idle_s": 0.02}, IDLE),
        (Worker(dies=True), {}, LOST),
        (Worker(sends=True), {"send_timeout_s": 0.02}, IDLE),
    ],
)
def test_a_session_is_closed_with_a_reason_and_its_worker_ended(worker: Worker, limits: dict[str, Any], code: int):
    socket: Any = Socket()
    workers: Any = Workers(worker)
    sessions = LiveSessions(workers, **limits)
    with ThreadPoolExecutor(1) as thread:  # the browser tests have an event loop in this thread
        thread.submit(asyncio.run, sessions.serve(socket, "simulator")).result(30)
    assert socket.accepted, "otherwise the browser cannot read the reason"
    assert socket.closed is not None
    assert socket.closed[0] == code
    assert socket.closed[1]
    assert worker.ended == (code != BUSY)
    assert sessions.count == 0
