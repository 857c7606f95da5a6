"""Answer the JSON requests of the pages; requests that need torch are answered by worker processes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from trueloop.app.web.request_body import RequestError, read_json_body
from trueloop.app.web.wire_format import decode_object, encode_json, error_body
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import describe_fields, parse_record
from trueloop.lab.views.load import View, views
from trueloop.lab.visible_runs import VisibleRuns
from trueloop.lab.workers import Worker, WorkerLost, Workers

MAX_BODY_BYTES: Final = 64 << 10  # largest size of a request body
BODY_TIMEOUT_S: Final = 10.0  # time in which a request body must arrive
ANSWER_TIMEOUT_S: Final = 20.0
MAX_CALCULATORS: Final = 2  # largest number of workers that compute at the same time
MAX_WAITING: Final = 64  # largest number of requests that wait for a worker


class RequestHandler:
    """Answers requests to all views; stateless except for idle workers and open runs."""

    def __init__(self, workers: Workers, runs: VisibleRuns, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._workers, self._runs, self._timeout_s = workers, runs, timeout_s
        self._idle_workers: list[Worker] = []
        self._worker_slots = asyncio.Semaphore(MAX_CALCULATORS)
        self._slow_requests = asyncio.Semaphore(1)
        self._waiting = 0

    async def describe(self, request: Request) -> Response:
        """Return the fields of a page's query, for its controls."""
        try:
            return _json_response(describe_fields(_find_view(request).query_type))
        except RequestError as error:
            return _json_response(error.body, error.status)

    async def answer(self, request: Request) -> Response:
        """Answer one request, or return an error status with the reason."""
        try:
            view = _find_view(request)
            body = await read_json_body(request, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S)
            query_fields = decode_object(body)
            query = parse_record(view.query_type, query_fields)  # an invalid query needs no worker
            if view.needs_torch:
                async with self._slow_requests if view.slow else contextlib.nullcontext():
                    return await self._compute_in_worker(request.path_params["page"], query_fields)
            arguments = (query, self._runs) if view.needs_runs else (query,)
            return _json_response(await run_in_threadpool(view.answer, *arguments))
        except InvalidConfig as error:
            return _json_response(error_body(error), 400)
        except RequestError as error:
            return _json_response(error.body, error.status)
        except WorkerLost as error:
            what = f"The worker process has ended: {error}."
            return _json_response({"what": what, "why": "", "fix": "See the lab's terminal."}, 500)

    async def _compute_in_worker(self, name: str, query_fields: Mapping[str, Any]) -> Response:
        async with self._borrow_worker() as worker:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await worker.send(encode_json({"view": name, "query": query_fields}))
                    reply = await worker.receive()
            except TimeoutError:
                raise RequestError(
                    503, f"The computation took more than {self._timeout_s:g} s.", "Choose smaller settings."
                ) from None
        assert isinstance(reply, str)
        if reply.startswith('{"answer":'):
            return Response(reply[len('{"answer":') : -1], media_type="application/json")
        return Response(reply[len('{"error":') : -1], 400, media_type="application/json")

    @contextlib.asynccontextmanager
    async def _borrow_worker(self) -> AsyncGenerator[Worker]:
        """Provide an idle or a new worker; a worker that fails is not used again."""
        if self._waiting >= MAX_WAITING:
            raise RequestError(503, f"{MAX_WAITING} requests are waiting already.", "Try again later.")
        self._waiting += 1
        try:
            await self._worker_slots.acquire()
        finally:
            self._waiting -= 1
        try:
            worker = self._idle_workers.pop() if self._idle_workers else await self._workers.fork("calculator")
            try:
                yield worker
            except BaseException:
                await worker.end(0.0)
                raise
            self._idle_workers.append(worker)
        finally:
            self._worker_slots.release()

    async def stop(self) -> None:
        """End the idle workers."""
        for worker in self._idle_workers:
            await worker.end()


def _find_view(request: Request) -> View:
    name = request.path_params["page"]
    view = views().get(name)
    if view is None:
        raise RequestError(404, f"There is no page {name[:40]!r}.", f"Known: {', '.join(views())}.")
    return view


def _json_response(value: Any, status: int = 200) -> Response:
    return Response(encode_json(value), status, media_type="application/json")
