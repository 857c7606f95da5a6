"""Live sessions: many and apart, bounded, closed with a reason; and whatever hostile is sent is refused."""

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


def texts(socket: ClientConnection, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        message = socket.recv(timeout=60)
        if isinstance(message, str) and wanted(json.loads(message)):
            return json.loads(message)
    raise AssertionError("it was not said")


def kind(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda message: message["kind"] == name


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_another_sites_page_opens_no_session(lab: str, origin: Any):
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
def test_what_cannot_be_met_is_refused_in_words_and_the_session_goes_on(lab: str, message: str):
    with connect(address(lab)) as socket:
        texts(socket, kind("ready"))
        socket.send(message)
        refused = texts(socket, kind("refused"))
        assert refused["what"]
        assert refused["fix"]
        socket.send(json.dumps({"do": "start", "config": {}, "bugs": [], "points": []}))
        assert texts(socket, kind("started"))["config"]["dataset"] == "spiral"


def test_a_message_without_end_closes_the_session(lab: str):
    with pytest.raises(ConnectionClosed), connect(address(lab)) as socket:
        texts(socket, kind("ready"))
        socket.send("x" * (1 << 20))
        texts(socket, kind("never"))


def test_sessions_are_apart(lab: str):
    with connect(address(lab)) as one, connect(address(lab)) as two:
        for socket, seed in ((one, 1), (two, 2)):
            texts(socket, kind("ready"))
            socket.send(json.dumps({"do": "start", "config": {"seed": seed}, "bugs": [], "points": []}))
        assert [texts(socket, kind("started"))["config"]["seed"] for socket in (one, two)] == [1, 2]


class Socket:
    """A browser's end that says nothing."""

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
    def __init__(self, *, dies: bool = False, speaks: bool = False) -> None:
        self.dies, self.speaks, self.ended = dies, speaks, False

    async def receive(self) -> str:
        if self.speaks:
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
        (Worker(speaks=True), {"send_timeout_s": 0.02}, IDLE),
    ],
)
def test_a_session_is_closed_with_its_reason_and_its_worker_given_back(
    worker: Worker, limits: dict[str, Any], code: int
):
    socket: Any = Socket()
    workers: Any = Workers(worker)
    sessions = LiveSessions(workers, **limits)
    with ThreadPoolExecutor(1) as thread:  # where a browser is tested, this one has a loop of its own already
        thread.submit(asyncio.run, sessions.serve(socket, "simulator")).result(30)
    assert socket.accepted, "or the browser could not read the reason"
    assert socket.closed is not None
    assert socket.closed[0] == code
    assert socket.closed[1]
    assert worker.ended == (code != BUSY)
    assert sessions.count == 0
