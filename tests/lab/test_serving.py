"""The lab answers its own page, refuses hostile requests with a 4xx, and stops when idle."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from trueloop.app.web import connections
from trueloop.lab import api, frames, serving, simulator, websocket, zygote
from trueloop.lab.serving import STATIC, IdleMonitor

JSON = {"content-type": "application/json"}
VENDORED = {  # uPlot 1.6.32, as published
    "uplot.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


class Answer:
    def __init__(self, lab: str, method: str, path: str, body: bytes | None = None, **headers: str) -> None:
        connection = http.client.HTTPConnection(urlsplit(lab).netloc, timeout=60)
        connection.putrequest(method, path, skip_host="host" in headers)
        if body is not None and "content-length" not in headers:
            headers["content-length"] = str(len(body))
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        response = connection.getresponse()
        self.status, self.headers, self.body = response.status, response.headers, response.read()
        connection.close()


def post(lab: str, page: str, value: object, **headers: str) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Answer(lab, "POST", f"/api/{page}", body, **{**JSON, **headers})


def test_the_page_is_served_with_its_policy(lab: str):
    page = Answer(lab, "GET", "/")
    assert page.status == 200
    assert b'<script type="module" src="app.js">' in page.body
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert page.headers["x-content-type-options"] == "nosniff"
    script = Answer(lab, "GET", "/app.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert Answer(lab, "GET", "/app.js", **{"if-none-match": script.headers["etag"]}).status == 304


@pytest.mark.parametrize(
    "path", ["/../serving.py", "/%2e%2e/serving.py", "/..%2f..%2fapi.py", "//etc/passwd", "/pages/"]
)
def test_no_file_outside_is_served(lab: str, path: str):
    assert Answer(lab, "GET", path).status == 404


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"host": "127.0.0.1.evil.example:80"}, {"host": ""}])
def test_another_name_for_this_machine_is_refused(lab: str, headers: dict[str, str]):
    assert Answer(lab, "GET", "/", **headers).status == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://[", "file://", "http://127.0.0.1:1", "http://localhost.evil:80"]
)
def test_another_origin_is_refused(lab: str, origin: str):
    assert post(lab, "arithmetic", {}, origin=origin).status == 403


def test_the_own_origin_is_accepted(lab: str):
    assert post(lab, "arithmetic", {}, origin=lab.rstrip("/")).status == 200


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b'{"samples": NaN}', 400, "NaN"),
        (b'{"samples": 1e999}', 400, "samples"),
        (b'{"nonsense": 1}', 400, "nonsense"),
        (b'{"__class__": {}}', 400, "__class__"),
        (b"[" * 60_000, 400, "not JSON"),
        (b" " * (65 << 10), 413, "larger than"),
    ],
)
def test_invalid_queries_are_refused_with_a_reason(lab: str, body: bytes, status: int, expected: str):
    answer = post(lab, "arithmetic", body)
    assert answer.status == status
    assert expected in json.loads(answer.body)["what"]


def test_a_body_that_is_not_json_is_refused(lab: str):
    answer = Answer(lab, "POST", "/api/arithmetic", b"{}", **{"content-type": "text/plain"})
    assert answer.status == 415


def test_an_unknown_page_is_404(lab: str):
    for answer in (post(lab, "nonsense", {}), Answer(lab, "GET", "/api/nonsense")):
        assert answer.status == 404
        assert "arithmetic" in json.loads(answer.body)["fix"]


def test_the_server_still_answers(lab: str):
    assert post(lab, "arithmetic", {}).status == 200


@pytest.mark.parametrize(("name", "digest"), VENDORED.items())
def test_vendored_files_are_the_published_ones(name: str, digest: str):
    assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest


def test_the_server_needs_no_torch(tmp_path: Path):
    script = tmp_path / "imports.py"
    script.write_text("import sys\nimport trueloop.lab.serving\nprint('torch' in sys.modules)\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_documentation_states_the_actual_limits():
    docs = Path(__file__).parents[2] / "docs" / "lab.md"
    text = " ".join(docs.read_text(encoding="utf-8").partition("## Who can reach it")[2].split())
    assert api.MAX_BODY_BYTES == serving.MAX_MESSAGE_BYTES
    for expected in (
        f"a body above {api.MAX_BODY_BYTES >> 10} KiB",
        f"may take {zygote.MAX_WORKER_BYTES >> 30} GiB more",
        f"ends at {simulator.MAX_MIB:g} MiB",
        f"at most {websocket.MAX_SESSIONS} of them",
        f"sends nothing for {websocket.IDLE_TIMEOUT_S / 60:g} minutes",
        f"receives nothing for {websocket.SEND_TIMEOUT_S:g} seconds",
        f"pauses its training after {frames.PAINT_TIMEOUT_S:g} seconds",
        f"share {api.MAX_CALCULATORS} such processes",
        f"a request may take {api.ANSWER_TIMEOUT_S:g} seconds, and {api.MAX_WAITING} may wait",
        f"At most {connections.MAX_CONNECTIONS} connections",
        f"within {connections.REQUEST_TIMEOUT_S:g} seconds",
    ):
        assert expected in text


def test_the_lab_is_not_idle_while_a_connection_is_open():
    async def check():
        release = asyncio.Event()

        async def app(scope, receive, send):
            await release.wait()

        monitor = IdleMonitor(app)
        visit = asyncio.create_task(monitor({"type": "websocket"}, None, None))
        await asyncio.sleep(0)
        assert monitor.idle_s == 0.0
        waiting_task = asyncio.create_task(monitor.wait_until_idle(0.01, lambda: False))
        await asyncio.sleep(0.05)
        assert not waiting_task.done()
        release.set()
        await visit
        assert monitor.idle_s >= 0.0
        await asyncio.wait_for(waiting_task, 10)

    asyncio.run(check())


def test_a_busy_lab_does_not_stop(monkeypatch):
    monkeypatch.setattr(serving, "IDLE_CHECK_INTERVAL_S", 0.01)
    calls = []

    def busy():
        calls.append(True)
        return len(calls) < 4

    async def app(scope, receive, send):
        raise AssertionError

    asyncio.run(asyncio.wait_for(IdleMonitor(app).wait_until_idle(0.001, busy), 10))
    assert len(calls) == 4


def test_a_failed_request_resets_the_idle_time():
    async def app(scope, receive, send):
        raise ValueError

    async def check():
        monitor = IdleMonitor(app)
        try:
            await monitor({"type": "http"}, None, None)
        except ValueError:
            assert monitor.idle_s >= 0.0
        else:
            raise AssertionError

    asyncio.run(check())


def test_a_request_cut_off_by_the_shutdown_gets_503():
    async def never(scope, receive, send):
        await asyncio.Event().wait()

    async def check():
        sent = []

        async def send(message):
            sent.append(message)

        request = asyncio.create_task(IdleMonitor(never)({"type": "http"}, None, send))
        await asyncio.sleep(0)
        request.cancel()
        await request
        assert sent[0]["status"] == 503
        assert json.loads(sent[1]["body"])["stopping"] is True

    asyncio.run(check())


def test_an_idle_lab_stops_by_itself(tmp_path):
    script = (
        "from pathlib import Path\n"
        "from trueloop.lab.serving import bind_port, serve\n"
        f"serve(bind_port(0), Path({str(tmp_path)!r}), open_browser=False, on_ready=print, idle_s=0.2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:" in done.stdout
