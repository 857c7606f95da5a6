"""A question that takes too long, or kills the process that answers, is answered all the same, and the next one too."""

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
    def __init__(self, behaves: str) -> None:
        self.behaves, self.ended = behaves, False

    async def send(self, line: str) -> None:
        self.asked = json.loads(line)

    async def receive(self) -> str:
        if self.behaves == "hangs":
            await asyncio.sleep(3600)
        if self.behaves == "dies":
            raise WorkerLost("it has hung up")
        return '{"answer":{"loss":1}}'

    async def end(self, grace_s: float = 1.0) -> None:
        self.ended = True


class Workers:
    """Gives out workers that behave in turn."""

    def __init__(self, *behaviours: str) -> None:
        self.workers = [Worker(each) for each in behaviours]
        self.given: list[Worker] = []

    async def fork(self, kind: str) -> Worker:
        assert kind == "calculator"
        self.given.append(self.workers.pop(0))
        return self.given[-1]


def question() -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    headers = [(b"content-type", b"application/json; charset=utf-8")]
    scope = {"type": "http", "method": "POST", "path_params": {"page": "pipeline"}, "headers": headers}
    return Request(scope, receive)


def asked_at_once(answering: RequestHandler, *questions: Request) -> list[tuple[int, str]]:
    async def asked() -> list[tuple[int, str]]:
        answers = await asyncio.gather(*map(answering.answer, questions))
        return [(answer.status_code, bytes(answer.body).decode()) for answer in answers]

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, asked()).result(30)


def test_a_question_that_does_not_come_to_its_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trueloop.lab.api.BODY_TIMEOUT_S", 0.02)
    given: list[dict[str, Any]] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def slow() -> dict[str, Any]:
        return given.pop() if given else await asyncio.sleep(3600, {})

    async def leaves() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    nothing: Any = None
    scope = question().scope
    late, left = asked_at_once(RequestHandler(Workers(), nothing), Request(scope, slow), Request(scope, leaves))  # pyright: ignore[reportArgumentType]
    assert late[0] == 408
    assert "to arrive" in late[1]
    assert left[0] == 400


def test_only_so_many_questions_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trueloop.lab.api.MAX_WAITING", 1)
    workers: Any = Workers("hangs", "hangs", "answers", "answers")
    nothing: Any = None
    answers = asked_at_once(RequestHandler(workers, nothing, timeout_s=0.1), *(question() for _ in range(5)))
    assert sorted(status for status, _ in answers) == [200, 503, 503, 503, 503]
    assert sum("requests are waiting" in words for _, words in answers) == 2


@pytest.mark.parametrize(("behaves", "status", "words"), [("hangs", 503, "more than"), ("dies", 500, "has ended")])
def test_a_worker_that_fails_is_not_asked_again(behaves: str, status: int, words: str):
    workers: Any = Workers(behaves, "answers")
    nothing: Any = None

    async def asked() -> list[tuple[int, Any]]:
        answering = RequestHandler(workers, nothing, timeout_s=0.05 if behaves == "hangs" else 20)
        answers = [await answering.answer(question()) for _ in range(3)]
        await answering.stop()
        return [(answer.status_code, json.loads(bytes(answer.body))) for answer in answers]

    with ThreadPoolExecutor(1) as thread:  # where a browser is tested, this one has a loop of its own already
        first, *others = thread.submit(asyncio.run, asked()).result(30)
    assert first[0] == status
    assert words in first[1]["what"]
    assert others == [(200, {"loss": 1})] * 2
    failed, good = workers.given
    assert failed.ended
    assert good.ended, "when the server stops"
    assert good.asked == {"view": "pipeline", "query": {}}
