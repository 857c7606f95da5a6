"""A request that takes too long or kills its worker gets an error, and the next request is answered."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request

from trueloop.lab.api import RequestHandler
from trueloop.lab.workers import WorkerLost


class Worker:
    def __init__(self, behaviour: str) -> None:
        self.behaviour, self.ended = behaviour, False

    async def send(self, line: str) -> None:
        self.received = json.loads(line)

    async def receive(self) -> str:
        if self.behaviour == "hangs":
            await asyncio.sleep(3600)
        if self.behaviour == "dies":
            raise WorkerLost("it has hung up")
        return '{"answer":{"loss":1}}'

    async def end(self, grace_s: float = 1.0) -> None:
        self.ended = True


class Workers:
    """Forks workers, each with the next of the given behaviours."""

    def __init__(self, *behaviours: str) -> None:
        self.workers = [Worker(each) for each in behaviours]
        self.forked: list[Worker] = []

    async def fork(self, kind: str) -> Worker:
        assert kind == "calculator"
        self.forked.append(self.workers.pop(0))
        return self.forked[-1]


def make_request() -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    headers = [(b"content-type", b"application/json; charset=utf-8")]
    scope = {"type": "http", "method": "POST", "path_params": {"page": "pipeline"}, "headers": headers}
    return Request(scope, receive)


def answer_all(handler: RequestHandler, *requests: Request) -> list[tuple[int, str]]:
    async def answer_in_order() -> list[tuple[int, str]]:
        answers = await asyncio.gather(*map(handler.answer, requests))
        return [(answer.status_code, bytes(answer.body).decode()) for answer in answers]

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, answer_in_order()).result(30)


def test_an_incomplete_request_body_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trueloop.lab.api.BODY_TIMEOUT_S", 0.02)
    body_parts: list[dict[str, Any]] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def slow() -> dict[str, Any]:
        return body_parts.pop() if body_parts else await asyncio.sleep(3600, {})

    async def leaves() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    nothing: Any = None
    scope = make_request().scope
    handler = RequestHandler(Workers(), nothing)  # pyright: ignore[reportArgumentType]
    late_answer, disconnected = answer_all(handler, Request(scope, slow), Request(scope, leaves))
    assert late_answer[0] == 408
    assert "to arrive" in late_answer[1]
    assert disconnected[0] == 400


def test_the_number_of_waiting_requests_is_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trueloop.lab.api.MAX_WAITING", 1)
    workers: Any = Workers("hangs", "hangs", "answers", "answers")
    nothing: Any = None
    answers = answer_all(RequestHandler(workers, nothing, timeout_s=0.1), *(make_request() for _ in range(5)))
    assert sorted(status for status, _ in answers) == [200, 503, 503, 503, 503]
    assert sum("requests are waiting" in message for _, message in answers) == 2


@pytest.mark.parametrize(("behaviour", "status", "message"), [("hangs", 503, "more than"), ("dies", 500, "has ended")])
def test_a_failed_worker_is_not_used_again(behaviour: str, status: int, message: str):
    workers: Any = Workers(behaviour, "answers")
    nothing: Any = None

    async def answer_in_order() -> list[tuple[int, Any]]:
        handler = RequestHandler(workers, nothing, timeout_s=0.05 if behaviour == "hangs" else 20)
        answers = [await handler.answer(make_request()) for _ in range(3)]
        await handler.stop()
        return [(answer.status_code, json.loads(bytes(answer.body))) for answer in answers]

    with ThreadPoolExecutor(1) as thread:  # the browser tests have an event loop in this thread
        first, *others = thread.submit(asyncio.run, answer_in_order()).result(30)
    assert first[0] == status
    assert message in first[1]["what"]
    assert others == [(200, {"loss": 1})] * 2
    failed, good = workers.forked
    assert failed.ended
    assert good.ended, "idle workers end when the server stops"
    assert good.received == {"view": "pipeline", "query": {}}
