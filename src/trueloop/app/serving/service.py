"""The service: what is asked under which path, and how every refusal is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from time import perf_counter
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trueloop.app.serving.access_log import Access
from trueloop.app.serving.batching import Batcher, Full, Stopped
from trueloop.app.serving.limits import Limits
from trueloop.app.serving.metrics import TYPE, Metrics
from trueloop.app.serving.warmup import warm_up
from trueloop.app.web.request_body import RequestError, read_json_body
from trueloop.app.web.same_origin import SameOriginMiddleware
from trueloop.app.web.wire_format import decode_object, encode_json
from trueloop.core.errors import InvalidConfig, InvalidData, InvalidModel, TrueloopError
from trueloop.export.artifact import Description
from trueloop.export.exported_model import Model, Outputs, answer
from trueloop.export.request_samples import Sample, samples_of

RETRY: Final = {"retry-after": "1"}  # seconds


class Service:
    """Answers requests with one model.

    Args:
        model: opened.
        limits: of requests.
        log: called with a line for each request.
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
            most=limits.max_batch,
            delay_s=limits.max_delay_ms / 1000,
            waiting=limits.max_waiting,
            tell=self.metrics.batch,
        )

    def application(self, *, guarded: bool) -> Starlette:
        """Build the server.

        Args:
            guarded: answer to names of this machine only, so that no web page can ask through a rebound name.
        """
        says = "This server answers requests to 127.0.0.1 or localhost only."
        middleware = [Middleware(Access, metrics=self.metrics, log=self._log)]
        middleware += [Middleware(SameOriginMiddleware, message=says)] if guarded else []
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
        warming = asyncio.create_task(self._warm())
        try:
            yield
        finally:
            self.stopping = True
            await warming
            await run_in_threadpool(self._batcher.stop)

    async def _warm(self) -> None:
        """Have the model allocate and compile what it does at first, before anybody waits for it."""
        told = await run_in_threadpool(warm_up, self._model, self._limits.max_batch)
        self._log(told)
        self.ready = True

    async def _describe(self, request: Request) -> Response:
        artifact = self._model.artifact
        described = asdict(artifact.description)
        return _json({"name": artifact.name, "digest": artifact.digest, **described, "limits": asdict(self._limits)})

    async def _health(self, request: Request) -> Response:
        return _json({"status": "alive"})

    async def _readiness(self, request: Request) -> Response:
        if self.ready and not self.stopping:
            return _json({"status": "ready"})
        return _json({"status": "stopping" if self.stopping else "warming up"}, 503, RETRY)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=TYPE)

    async def _predict(self, request: Request) -> Response:
        """Answer samples, or say in a 4xx why not, and in a 503 when to come again."""
        limits, since_s = self._limits, perf_counter()
        try:
            if not self.ready:
                raise RequestError(503, "The model is warming up.", "Ask again in a second.")
            max_bytes = int(limits.max_body_mib * 2**20)
            body = await read_json_body(request, max_bytes=max_bytes, timeout_s=limits.timeout_s)
            samples, raw = await run_in_threadpool(_asked, self._model.description, body, limits.max_batch)
            outputs = await self._outputs(samples, limits.timeout_s - (perf_counter() - since_s))
            text = await run_in_threadpool(_told, self._model.description, outputs, raw=raw)
            return Response(text, media_type="application/json")
        except InvalidConfig as error:
            return _json(_words(error), 400)
        except (InvalidData, InvalidModel) as error:
            return _json(_words(error), 422)
        except RequestError as refused:
            return _json(refused.body, refused.status, RETRY if refused.status == 503 else None)

    async def _outputs(self, samples: list[Sample], patience_s: float) -> list[Outputs]:
        try:
            done = self._batcher.submit(samples)
            async with asyncio.timeout(max(0.0, patience_s)):
                return await asyncio.wrap_future(done)
        except Full:
            raise RequestError(503, "Too many requests wait already.", "Ask again in a second.") from None
        except Stopped:
            raise RequestError(503, "The server is stopping.", "Ask another one.") from None
        except TimeoutError:
            what = f"This took more than {self._limits.timeout_s:g} s."
            raise RequestError(503, what, "Ask again in a while, or for less.") from None


def _asked(description: Description, body: bytes, most: int) -> tuple[list[Sample], bool]:
    given = dict(decode_object(body))
    raw = given.pop("raw", False)
    if not isinstance(raw, bool):
        raise InvalidConfig("raw is neither true nor false.", fix="Leave it out, or send true.")
    return samples_of(description, given, most=most), raw


def _told(description: Description, outputs: list[Outputs], *, raw: bool) -> str:
    return encode_json({"answers": [answer(description, each, raw=raw) for each in outputs]})


def _words(error: TrueloopError) -> dict[str, str]:
    return {"what": error.what, "why": error.why, "fix": error.fix}


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode_json(value), status, headers=headers, media_type="application/json")
