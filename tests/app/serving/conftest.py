"""Servers in a thread of this process, asked over real sockets."""

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
    told: Any
    headers: dict[str, str]


class Running:
    """A server that is asked."""

    def __init__(self, service: Service, port: int, log: list[str]) -> None:
        self.service, self.port, self.log = service, port, log

    def ask(self, path: str, given: Any = None, method: str = "", **headers: str) -> Reply:
        """Send a request on a connection of its own; bytes as they are, anything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = given if given is None or isinstance(given, bytes) else json.dumps(given).encode()
        kind = {"content-type": "application/json"} if body is not None else {}
        with contextlib.closing(connection):
            connection.request(method or ("GET" if body is None else "POST"), path, body, {**kind, **headers})
            answer = connection.getresponse()
            text = answer.read()
            named = {name.lower(): value for name, value in answer.getheaders()}
        told = json.loads(text) if "json" in named.get("content-type", "") else text.decode()
        return Reply(answer.status, told, named)

    def predict(self, given: Any, **headers: str) -> Reply:
        return self.ask("/predict", given, **headers)


@contextlib.contextmanager
def running(model: Any, *, wait: bool = True, **limits: Any) -> Iterator[Running]:
    """Serve a model until the block ends."""
    log: list[str] = []
    bounds = Limits(**limits)
    service = Service(model, bounds, log=log.append)
    made = create_server(service, host="127.0.0.1", timeout_s=bounds.timeout_s)
    taken, started = bind_port(0), threading.Event()
    thread = threading.Thread(target=run, args=(made, taken), kwargs={"on_ready": started.set})
    thread.start()
    assert started.wait(30)
    found = Running(service, taken.getsockname()[1], log)
    try:
        while wait and found.ask("/ready").status != 200:
            threading.Event().wait(0.005)
        yield found
    finally:
        made.should_exit = True
        thread.join(30)
        taken.close()


@pytest.fixture
def serving():
    """`with serving(model, max_batch=4) as server`."""
    return running


@pytest.fixture(scope="module")
def tables(made_artifacts) -> Iterator[Running]:
    """The table model, served."""
    with running(made_artifacts.model("table"), max_batch=8, max_body_mib=0.05) as found:
        yield found


@pytest.fixture(scope="module")
def texts(made_artifacts) -> Iterator[Running]:
    """The text model, served."""
    with running(made_artifacts.model("text"), max_batch=8) as found:
        yield found
