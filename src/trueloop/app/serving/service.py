"""Routes of the prediction server, its access log and its warm-up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trueloop.app.serving.batching import Batcher, BatcherStopped, QueueFull
from trueloop.app.serving.limits import Limits
from trueloop.app.serving.metrics import CONTENT_TYPE, Metrics
from trueloop.app.web.request_body import RequestError, read_json_body
from trueloop.app.web.same_origin import SameOriginMiddleware
from trueloop.app.web.wire_format import decode_object, encode_json, error_body
from trueloop.core.errors import InvalidConfig, InvalidData, InvalidModel
from trueloop.export.artifact import Description
from trueloop.export.exported_model import Model, Outputs, interpret_outputs
from trueloop.export.request_samples import Sample, parse_request

if TYPE_CHECKING:
    from trueloop.export.io_description import Array, SizeRange
    from trueloop.export.request_samples import Numbers


MAX_UNBOUNDED_SIZE: Final = 512  # warm-up size of a dimension without a bound


def warm_up(model: Model, max_batch: int) -> str:
    """Run batches of zeros with 1 and ``max_batch`` samples, and return a line with the time that this took."""
    start_s = perf_counter()
    specs = model.description.inputs
    try:
        for count, longest in ((1, False), (max_batch, True)):
            model.run([tuple(_zeros(spec, longest=longest) for spec in specs)] * count)
    except (InvalidModel, MemoryError) as error:  # zeros may be invalid inputs of this model
        return f"warm-up   failed on zeros: {error.what if isinstance(error, InvalidModel) else error}"
    return f"warm-up   {perf_counter() - start_s:.2f} s"


def _zeros(spec: Array, *, longest: bool) -> Numbers:
    import numpy as np

    sizes = [_size(each, longest=longest) for each in spec.shape[1:]]
    return np.full(sizes, spec.lowest or 0, dtype=spec.dtype)


def _size(allowed: SizeRange, *, longest: bool) -> int:
    highest = min(allowed.highest or MAX_UNBOUNDED_SIZE, MAX_UNBOUNDED_SIZE)
    return max(allowed.lowest, highest) if longest else allowed.lowest


class AccessLogMiddleware:
    """Logs and counts every response; request bodies are never logged."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, log: Callable[[str], None]) -> None:
        self._app, self._metrics, self._log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, sent_bytes, start_s = 500, 0, perf_counter()

        async def send_and_count(message: Message) -> None:
            nonlocal status, sent_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_and_count)
        finally:
            seconds = perf_counter() - start_s
            self._metrics.count_request(scope["path"], status, seconds)
            client = (scope.get("client") or ("-",))[0]
            path = scope["path"][:100].encode("unicode_escape").decode()  # a log entry stays on one line
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._log(f"{now} {client} {scope['method']} {path} {status} {1000 * seconds:.1f} ms {sent_bytes} bytes")


RETRY_HEADERS: Final = {"retry-after": "1"}  # in seconds


class Service:
    """Serves predictions of one model.

    Args:
        model: the exported model, opened.
        limits: limits on requests and batches.
        log: function that is called with one line per request.
    """

    def __init__(self, model: Model, limits: Limits, *, log: Callable[[str], None]) -> None:
        self._model, self._limits, self._log = model, limits, log
        self.ready = self.stopping = False
        artifact = model.artifact
        info = {"name": artifact.name, "kind": artifact.description.kind, "digest": artifact.digest}
        gauges: dict[str, Callable[[], float]] = {
            "trueloop_waiting_samples": lambda: self._batcher.waiting,
            "trueloop_ready": lambda: float(self.ready and not self.stopping),
        }
        self.metrics = Metrics(info, gauges)
        self._batcher = Batcher(
            model.run,
            max_batch=limits.max_batch,
            delay_s=limits.max_delay_ms / 1000,
            max_waiting=limits.max_waiting,
            on_batch=self.metrics.count_batch,
        )

    def build_app(self, *, local_only: bool) -> Starlette:
        """Build the server.

        Args:
            local_only: True to accept only host names of this machine, which prevents DNS rebinding.
        """
        message = "This server answers requests to 127.0.0.1 or localhost only."
        middleware = [Middleware(AccessLogMiddleware, metrics=self.metrics, log=self._log)]
        middleware += [Middleware(SameOriginMiddleware, message=message)] if local_only else []
        return Starlette(
            routes=[
                Route("/", self._describe),
                Route("/predict", self._predict, methods=["POST"]),
                Route("/health", self._health),
                Route("/ready", self._readiness),
                Route("/metrics", self._metrics),
            ],
            middleware=middleware,
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        warm_up_task = asyncio.create_task(self._warm_up())
        try:
            yield
        finally:
            self.stopping = True
            await warm_up_task
            await run_in_threadpool(self._batcher.stop)

    async def _warm_up(self) -> None:
        """Let the model allocate and compile before the first request."""
        self._log(await run_in_threadpool(warm_up, self._model, self._limits.max_batch))
        self.ready = True

    async def _describe(self, request: Request) -> Response:
        artifact = self._model.artifact
        description, limits = asdict(artifact.description), asdict(self._limits)
        return _json({"name": artifact.name, "digest": artifact.digest, **description, "limits": limits})

    async def _health(self, request: Request) -> Response:
        return _json({"status": "alive"})

    async def _readiness(self, request: Request) -> Response:
        if self.ready and not self.stopping:
            return _json({"status": "ready"})
        return _json({"status": "stopping" if self.stopping else "warming up"}, 503, RETRY_HEADERS)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _predict(self, request: Request) -> Response:
        """Return predictions; a 4xx response explains an invalid request, a 503 response says when to retry."""
        limits, start_s = self._limits, perf_counter()
        try:
            if not self.ready:
                raise RequestError(503, "The model is warming up.", "Retry in a second.")
            max_bytes = int(limits.max_body_mib * 2**20)
            body = await read_json_body(request, max_bytes=max_bytes, timeout_s=limits.timeout_s)
            samples, raw = await run_in_threadpool(_parse_body, self._model.description, body, limits.max_batch)
            outputs = await self._run_model(samples, limits.timeout_s - (perf_counter() - start_s))
            text = await run_in_threadpool(_encode_answers, self._model.description, outputs, raw=raw)
            return Response(text, media_type="application/json")
        except InvalidConfig as error:
            return _json(error_body(error), 400)
        except (InvalidData, InvalidModel) as error:
            return _json(error_body(error), 422)
        except RequestError as error:
            return _json(error.body, error.status, RETRY_HEADERS if error.status == 503 else None)

    async def _run_model(self, samples: list[Sample], timeout_s: float) -> list[Outputs]:
        try:
            outputs = self._batcher.submit(samples)
            async with asyncio.timeout(max(0.0, timeout_s)):
                return await asyncio.wrap_future(outputs)
        except QueueFull:
            raise RequestError(503, "Too many requests are waiting.", "Retry in a second.") from None
        except BatcherStopped:
            raise RequestError(503, "The server is stopping.", "Send the request to another server.") from None
        except TimeoutError:
            problem = f"The prediction took more than {self._limits.timeout_s:g} s."
            raise RequestError(503, problem, "Retry later, or send fewer samples.") from None


def _parse_body(description: Description, body: bytes, max_batch: int) -> tuple[list[Sample], bool]:
    fields = dict(decode_object(body))
    raw = fields.pop("raw", False)
    if not isinstance(raw, bool):
        raise InvalidConfig("raw is neither true nor false.", fix="Omit raw, or send true.")
    return parse_request(description, fields, max_samples=max_batch), raw


def _encode_answers(description: Description, outputs: list[Outputs], *, raw: bool) -> str:
    return encode_json({"answers": [interpret_outputs(description, each, raw=raw) for each in outputs]})


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode_json(value), status, headers=headers, media_type="application/json")
