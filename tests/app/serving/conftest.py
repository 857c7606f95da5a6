"""Servers in a thread of this process, with requests over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from trueloop.app.serving.limits import Limits
from trueloop.app.serving.server import create_server, run
from trueloop.app.serving.service import Service
from trueloop.lab.serving import bind_port


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Running:
    """A running server, and requests to it."""

    def __init__(self, service: Service, port: int, log: list[str]) -> None:
        self.service, self.port, self.log = service, port, log

    def request(self, path: str, data: Any = None, method: str = "", **headers: str) -> Reply:
        """Send a request on a new connection: bytes unchanged, any other body as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
        content_type = {"content-type": "application/json"} if body is not None else {}
        with contextlib.closing(connection):
            connection.request(method or ("GET" if body is None else "POST"), path, body, {**content_type, **headers})
            response = connection.getresponse()
            text = response.read()
            reply_headers = {name.lower(): value for name, value in response.getheaders()}
        reply_body = json.loads(text) if "json" in reply_headers.get("content-type", "") else text.decode()
        return Reply(response.status, reply_body, reply_headers)

    def predict(self, data: Any, **headers: str) -> Reply:
        return self.request("/predict", data, **headers)


@contextlib.contextmanager
def running(model: Any, *, wait: bool = True, **limits: Any) -> Iterator[Running]:
    """Serve a model until the block ends."""
    log: list[str] = []
    bounds = Limits(**limits)
    service = Service(model, bounds, log=log.append)
    server = create_server(service, host="127.0.0.1", timeout_s=bounds.timeout_s)
    listener, started = bind_port(0), threading.Event()
    thread = threading.Thread(target=run, args=(server, listener), kwargs={"on_ready": started.set})
    thread.start()
    assert started.wait(30)
    running_server = Running(service, listener.getsockname()[1], log)
    try:
        while wait and running_server.request("/ready").status != 200:
            threading.Event().wait(0.005)
        yield running_server
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@pytest.fixture
def serving():
    """`with serving(model, max_batch=4) as server`."""
    return running


@pytest.fixture(scope="module")
def tables(tiny_artifacts) -> Iterator[Running]:
    """The table model, served."""
    with running(tiny_artifacts.model("table"), max_batch=8, max_body_mib=0.05) as running_server:
        yield running_server


@pytest.fixture(scope="module")
def texts(tiny_artifacts) -> Iterator[Running]:
    """The text model, served."""
    with running(tiny_artifacts.model("text"), max_batch=8) as running_server:
        yield running_server
