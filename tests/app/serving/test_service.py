"""Real requests: answers under load equal the live model's, and hostile requests are refused with a reason."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from trueloop.app.serving.service import MAX_UNBOUNDED_SIZE, warm_up
from trueloop.core.errors import InvalidModel
from trueloop.export.exported_model import Model
from trueloop.export.io_description import Array, SizeRange


def warmed(*sizes: SizeRange, error: Exception | None = None) -> tuple[list[Any], str]:
    shapes: list[Any] = []

    def run(samples: list[tuple[Any, ...]]) -> None:
        shapes.append((len(samples), samples[0][0].shape))
        if error is not None:
            raise error

    spec = Array(name="x", dtype="float32", shape=(SizeRange(lowest=1), *sizes))
    model = SimpleNamespace(description=SimpleNamespace(inputs=[spec]), run=run)
    return shapes, warm_up(cast("Model", model), 8)


@pytest.mark.parametrize(
    ("allowed", "short", "long"),
    [
        (SizeRange(lowest=784, highest=784), 784, 784),
        (SizeRange(lowest=600), 600, 600),
        (SizeRange(lowest=1, highest=9), 1, 9),
        (SizeRange(lowest=2, highest=9999), 2, MAX_UNBOUNDED_SIZE),
    ],
)
def test_sizes_are_within_bounds(allowed: SizeRange, short: int, long: int):
    shapes, line = warmed(allowed)
    assert shapes == [(1, (short,)), (8, (long,))]
    assert line.endswith(" s")


def test_a_failed_warm_up_is_logged():
    for error in (InvalidModel("bad zeros"), MemoryError("bad zeros")):
        assert warmed(SizeRange(lowest=1), error=error)[1] == "warm-up   failed on zeros: bad zeros"


ROW = {"age": 1.0, "height": 2.0, "weight": 3.0}


def outputs(live, arrays):
    with torch.no_grad():
        return live(torch.from_numpy(np.asarray(arrays)))


def test_answers_under_load_equal_the_live_models(serving, tiny_artifacts):
    rng = np.random.default_rng(1)
    live = tiny_artifacts.live()
    inputs = [rng.normal(size=(1 + n % 3, 3)).astype("f4") for n in range(120)]

    with serving(tiny_artifacts.model(), max_batch=8) as server, ThreadPoolExecutor(12) as clients:
        replies = list(clients.map(lambda each: server.predict({"inputs": each.tolist(), "raw": True}), inputs))
        done = 'trueloop_requests_total{path="/predict",status="200"} 120'  # counted after the answer was sent
        while done not in (text := server.request("/metrics").body):
            threading.Event().wait(0.005)
    assert {reply.status for reply in replies} == {200}
    for array, reply in zip(inputs, replies, strict=True):
        expected = outputs(live, array)
        answers = reply.body["answers"]
        found = torch.tensor([each["outputs"]["output"] for each in answers])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert [each["label"] for each in answers] == [("no", "yes")[index] for index in expected.argmax(1)]
        probabilities = torch.tensor([each["probability"] for each in answers])
        torch.testing.assert_close(probabilities, expected.softmax(1).amax(1))
    total = float(sum(map(len, inputs)))
    assert f"trueloop_batch_samples_sum {total}" in text, "samples of the warm-up are not counted"
    batches = int(text.partition("trueloop_batch_samples_count ")[2].split()[0])
    assert batches < len(inputs), "some requests were batched"


def test_texts_of_several_lengths_are_batched(texts, tiny_artifacts):
    live = tiny_artifacts.live("text")
    words = [b"a", b"abc", b"loop", b"abc", "é".encode()] * 6
    with ThreadPoolExecutor(6) as clients:
        replies = list(clients.map(lambda word: texts.predict({"text": word.decode()}), words))
    for word, reply in zip(words, replies, strict=True):
        expected = outputs(live, [list(word)])[0, -1]
        (answer,) = reply.body["answers"]
        assert answer["byte"] == int(expected.argmax())
        assert answer["probability"] == pytest.approx(float(expected.softmax(0).max()), rel=1e-5)


def test_rows_may_name_columns_in_any_order(tables):
    one = tables.predict({"rows": [ROW]}).body["answers"]
    assert one == tables.predict({"rows": [dict(reversed(ROW.items()))]}).body["answers"]
    assert one[0]["index"] == tables.predict({"inputs": [1, 2, 3]}).body["answers"][0]["index"]


def test_the_service_describes_itself(tables, tiny_artifacts):
    description = tables.request("/").body
    assert description["digest"] == tiny_artifacts.exported["table", "pt2"].digest
    assert description["inputs"][0]["shape"][1] == {"lowest": 3, "highest": 3}
    assert description["limits"]["max_batch"] == 8
    assert tables.request("/health")[:2] == (200, {"status": "alive"})
    assert tables.request("/ready")[:2] == (200, {"status": "ready"})
    assert tables.request("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


DEEP = b'{"inputs": ' + b"[" * 20_000 + b"1" + b"]" * 20_000 + b"}"
HOSTILE = {
    "no JSON": (b"{", 400, "not JSON"),
    "no object": ([1, 2, 3], 400, "not a JSON object"),
    "NaN": (b'{"inputs": [1, NaN, 3]}', 400, "NaN is not a JSON number"),
    "infinity": (b'{"inputs": [1, -Infinity, 3]}', 400, "-Infinity is not"),
    "an infinite power": (b'{"inputs": [1, 1e999, 3]}', 422, "inputs? contains NaN or infinity"),
    "too large for float32": ({"inputs": [1, 1e300, 3]}, 422, "a number that float32 cannot"),
    "a whole number without end": (b'{"inputs": [1, ' + b"9" * 4000 + b", 3]}", 422, "too large"),
    "a whole number beyond Python's patience": (b'{"inputs": [1, ' + b"9" * 6000 + b", 3]}", 400, "not JSON"),
    "nested without end": (DEEP, 400, "not JSON"),
    "nested too deep": ({"inputs": json.loads("[" * 30 + "1" + "]" * 30)}, 422, "nested too deep"),
    "ragged": ({"inputs": [[1, 2, 3], [1, 2]]}, 422, r"inputs\[1\] has another size"),
    "a text among numbers": ({"inputs": [1, "2", 3]}, 422, r"inputs\[1\] is '2'"),
    "null": ({"inputs": [1, None, 3]}, 422, r"inputs\[1\] is None"),
    "true among numbers": ({"inputs": [1, True, 3]}, 422, "mixes numbers"),
    "all true": ({"inputs": [True, True, True]}, 422, "of type bool"),
    "too few": ({"inputs": [1, 2]}, 422, r"has the shape \[2\]"),
    "nothing": ({"inputs": []}, 422, "shape|dimensions"),
    "no samples": ({"rows": []}, 400, "0 samples"),
    "too many samples": ({"inputs": [[1, 2, 3]] * 9}, 400, "9 samples"),
    "a name that is near": ({"input": [1, 2, 3]}, 400, "no field 'input'"),
    "two ways at once": ({"inputs": [1, 2, 3], "rows": [ROW]}, 400, "2 fields"),
    "no way": ({}, 400, "0 fields"),
    "text for numbers": ({"text": "abc"}, 400, "no field 'text'"),
    "a column near": ({"rows": [{**ROW, "wieght": 1}]}, 422, "a column 'wieght'"),
    "a column missing": ({"rows": [{"age": 1}]}, 422, "lacks 2 columns: height, weight"),
    "no rows": ({"rows": "age"}, 400, "rows is 'age'"),
    "raw that is no truth": ({"inputs": [1, 2, 3], "raw": 1}, 400, "raw is neither"),
    "one name twice": (b'{"inputs": [1, 2, 3], "inputs": [1]}', 422, "shape"),
    "not UTF-8": (b'{"inputs": "\xff"}', 400, "not JSON"),
    "too large": (b'{"inputs": [' + b"1," * 40_000 + b"1]}", 413, "larger than 52428 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused_with_a_reason(tables, name):
    body, status, words = HOSTILE[name]
    reply = tables.predict(body)
    assert reply.status == status, reply.body
    assert re.search(words, reply.body["what"]), reply.body
    assert tables.predict({"inputs": [1, 2, 3]}).status == 200, "the server continues"


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"text": "1234567"}, 422, "7 bytes"),
        ({"text": ""}, 422, "0 bytes"),
        ({"text": ["ab", 3]}, 400, "text is"),
        ({"text": "\ud800"}, 422, "lone surrogate"),
        ({"inputs": [1, 256]}, 422, "contains 256"),
        ({"inputs": [1, -1]}, 422, "contains -1"),
        ({"inputs": [1, 2.5]}, 422, "takes integers"),
        ({"inputs": [[]]}, 422, "shape"),
    ],
)
def test_invalid_texts_are_refused(texts, given, status, words):
    reply = texts.predict(given)
    assert (reply.status, words in reply.body["what"]) == (status, True), reply.body


def test_other_content_types_methods_paths_and_hosts_are_refused(tables):
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert tables.request("/predict", b"inputs=1", **form).status == 415
    assert tables.request("/predict", b"\x80\x04", **{"content-type": "application/octet-stream"}).status == 415
    assert tables.request("/predict").status == 405
    assert tables.request("/health", {}).status == 405
    for path in ("/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/predict/../manifest.json"):
        assert tables.request(path).status == 404
    assert tables.request("/predict", {"inputs": [1, 2, 3]}, host="evil.example").status == 403
    assert tables.request("/predict", {"inputs": [1, 2, 3]}, origin="http://evil.example").status == 403


def test_the_log_has_one_line_per_request_without_the_body(serving, tiny_artifacts):
    with serving(tiny_artifacts.model()) as server:
        server.request("/%0aINFO%20forged")
        server.predict({"inputs": [4711, 2, 3]})
    lines = [line for line in server.log if "/ready" not in line and not line.startswith("warm-up")]
    assert len(lines) == 2, lines  # a line is written after the answer was sent
    assert not any("\n" in line or "4711" in line for line in lines)
    assert " GET /\\nINFO forged 404 " in lines[0]
    assert " POST /predict 200 " in lines[1]


def test_a_body_that_does_not_arrive_times_out(serving, tiny_artifacts):
    with serving(tiny_artifacts.model(), timeout_s=0.3) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            slow.sendall(f'{head}Content-Length: 30\r\n\r\n{{"inp'.encode())
            slow.settimeout(10)
            assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
        assert server.predict({"inputs": [1, 2, 3]}).status == 200


def test_a_header_that_does_not_arrive_closes_the_connection(serving, tiny_artifacts, monkeypatch):
    monkeypatch.setattr("trueloop.app.web.connections.REQUEST_TIMEOUT_S", 0.2)
    with serving(tiny_artifacts.model()) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: loc")
            slow.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(100) == b""
        assert server.predict({"inputs": [1, 2, 3]}).status == 200


class Slow:
    """A model that answers only while `released` is set."""

    def __init__(self, model: Model) -> None:
        self.description, self.artifact, self._model = model.description, model.artifact, model
        self.released, self.called = threading.Event(), threading.Event()
        self.batches: list[int] = []

    def run(self, samples):
        self.batches.append(len(samples))
        self.called.set()
        assert self.released.wait(30)
        return self._model.run(samples)


def test_no_prediction_is_answered_before_the_warm_up_ends(serving, tiny_artifacts):
    slow = Slow(tiny_artifacts.model())
    with serving(slow, wait=False) as server:
        assert slow.called.wait(10)
        assert server.request("/health").status == 200
        for reply in (server.request("/ready"), server.predict({"inputs": [1, 2, 3]})):
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        slow.released.set()
        while server.request("/ready").status != 200:
            threading.Event().wait(0.005)
        assert server.predict({"inputs": [1, 2, 3]}).status == 200
    assert slow.batches[:2] == [1, 32], "one sample, and a full batch"


def test_a_full_queue_refuses_requests_and_answers_the_waiting_ones(serving, tiny_artifacts):
    slow = Slow(tiny_artifacts.model())
    slow.released.set()
    with serving(slow, max_batch=2, max_waiting=4) as server, ThreadPoolExecutor(8) as clients:
        slow.released.clear()
        slow.called.clear()
        busy = clients.submit(server.predict, {"inputs": [[1, 2, 3]] * 2})
        assert slow.called.wait(10)  # the model runs two samples, and none waits
        waiting = [clients.submit(server.predict, {"inputs": [[1, 2, 3]] * 2}) for _ in range(2)]
        while "trueloop_waiting_samples 4" not in server.request("/metrics").body:
            threading.Event().wait(0.005)
        refused = server.predict({"inputs": [1, 2, 3]})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        slow.released.set()
        assert [each.result(30).status for each in (busy, *waiting)] == [200] * 3


def test_a_slow_model_times_out(serving, tiny_artifacts):
    slow = Slow(tiny_artifacts.model())
    slow.released.set()
    with serving(slow, timeout_s=0.3) as server:
        slow.released.clear()
        reply = server.predict({"inputs": [1, 2, 3]})
        assert (reply.status, reply.body["what"]) == (503, "The prediction took more than 0.3 s.")
        slow.released.set()
        assert server.predict({"inputs": [1, 2, 3]}).status == 200


def test_requests_in_flight_are_answered_before_the_server_stops(serving, tiny_artifacts):
    slow = Slow(tiny_artifacts.model())
    slow.released.set()
    with ThreadPoolExecutor(4) as clients:
        with serving(slow, max_batch=1, max_delay_ms=0, max_waiting=4) as server:
            slow.released.clear()
            slow.called.clear()
            requests = [clients.submit(server.predict, {"inputs": [1, 2, 3]}) for _ in range(3)]
            assert slow.called.wait(10)
            while "trueloop_waiting_samples 2" not in server.request("/metrics").body:
                threading.Event().wait(0.005)
            threading.Timer(0.2, slow.released.set).start()  # after the server was stopped
        assert [each.result(30).status for each in requests] == [200] * 3
