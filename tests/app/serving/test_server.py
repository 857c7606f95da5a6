"""`trueloop serve` in another process: it answers, refuses invalid options, and shuts down on SIGTERM."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
import time

import pytest

from trueloop.app.serving.limits import Limits
from trueloop.app.serving.server import is_loopback
from trueloop.cli.app import main
from trueloop.core.errors import InvalidConfig


def address(program):
    deadline = time.monotonic() + 60
    while "/predict" not in (out := program.output()[0]):
        assert program.poll() is None, program.output()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(out.rpartition(":")[2].partition("/")[0])


def post(port, body):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/predict", json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def metrics(port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


@pytest.mark.slow(reason="starts a server and waits for its shutdown")
def test_sigterm_finishes_requests_and_exits_with_0(tiny_artifacts, forker, tmp_path):
    arguments = ["serve", tiny_artifacts.folder(), "--port", "0", "--max-delay-ms", "400", "--max-batch", "8"]
    program = forker.start("-m", "trueloop", *arguments, cwd=tmp_path)
    port = address(program)
    while post(port, {"inputs": [1, 2, 3]})[0] == 503:  # warming up
        time.sleep(0.01)
    replies: list[tuple[int, object]] = []
    asking = threading.Thread(target=lambda: replies.append(post(port, {"inputs": [1, 2, 3]})))
    asking.start()
    while "trueloop_waiting_samples 1" not in metrics(port):  # the request waits for others to join its batch
        time.sleep(0.01)
    program.send_signal(signal.SIGTERM)
    asking.join(30)
    assert program.wait(30) == 0
    ((status, body),) = replies
    assert status == 200
    assert body["answers"][0]["label"] in ("no", "yes")
    out, err = program.output()
    assert out.endswith("trueloop serve: stopped.\n")
    assert " POST /predict 200 " in err
    assert "Traceback" not in err


def test_a_used_port_and_impossible_limits_are_refused(tiny_artifacts, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tiny_artifacts.folder()), "--port", port]) == 1
        assert f"Port {port} cannot be used" in capsys.readouterr().err
    for line in (
        "--max-batch 0",
        "--max-batch 9 --max-waiting 8",
        "--timeout-s 0",
        "--timeout-s inf",
        "--max-body-mib inf",
        "--max-delay-ms 10000",  # equal to the request timeout
    ):
        arguments = line.split()
        assert main(["serve", str(tiny_artifacts.folder()), *arguments]) != 0
        assert "These limits are impossible" in capsys.readouterr().err
    assert main(["serve", str(tiny_artifacts.folder()), "--host", "no such host"]) == 1
    assert "of 'no such host' cannot be used" in capsys.readouterr().err
    for threads in ("0", "-3", "99999999999"):
        assert main(["serve", str(tiny_artifacts.folder()), "--threads", threads]) == 1
        assert f"threads is {threads}." in capsys.readouterr().err
    assert main(["serve", str(tiny_artifacts.folder()), "--port", "80.5"]) == 2
    with pytest.raises(InvalidConfig):
        Limits(max_body_mib=float("nan"))


def test_loopback_addresses_are_recognised():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert not [host for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", "") if is_loopback(host)]
