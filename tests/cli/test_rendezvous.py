"""Whose address it is, and what is said where nobody listens."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from trueloop.cli import rendezvous
from trueloop.cli.rendezvous import host_and_port, is_local, open_store, wait_for_listener
from trueloop.core.errors import InvalidConfig, ProcessLost


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1:29500", ("node1", 29500)),
        ("10.0.0.7:1", ("10.0.0.7", 1)),
        ("net-0.net.team.svc.cluster.local:65535", ("net-0.net.team.svc.cluster.local", 65535)),
        ("[fe80::1%eth0]:29500", ("fe80::1%eth0", 29500)),
    ],
)
def test_addresses_are_split(text: str, expected: tuple[str, int]):
    assert host_and_port(text) == expected


@pytest.mark.parametrize(
    "text", ["", "node1", ":29500", "node1:", "node1:0", "node1:65536", "tcp://a:1", "a b:1", "::1:80"]
)
def test_invalid_addresses_are_refused(text: str):
    with pytest.raises(InvalidConfig) as error:
        host_and_port(text)
    assert error.value.what == f"--rendezvous is {text!r}."


@pytest.mark.parametrize(
    ("text", "is_local_host"),
    # The second is an address for documentation (RFC 5737), the third a name that cannot exist (RFC 2606).
    [("localhost:29500", True), ("192.0.2.1:29500", False), ("nobody.invalid:29500", False)],
)
def test_addresses_of_this_machine_are_recognised(text: str, is_local_host: bool):
    assert is_local(text) is is_local_host


def test_an_address_without_a_listener_times_out(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "is_local", lambda _: False)
    with pytest.raises(ProcessLost, match=f"Nothing answers at localhost:{port}") as error:
        wait_for_listener(f"localhost:{port}", timeout_s=0.1)
    assert "Start the same command on localhost" in error.value.fix


def test_a_late_listener_is_waited_for(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "is_local", lambda _: False)
    opened: list[socket.socket] = []
    timer = threading.Timer(0.2, lambda: opened.append(socket.create_server(("localhost", port))))
    began = time.monotonic()
    timer.start()
    wait_for_listener(f"localhost:{port}", timeout_s=30)
    assert opened
    assert time.monotonic() - began >= 0.2
    opened[0].close()


def test_this_machine_is_not_waited_for(port: int):
    wait_for_listener(None, timeout_s=0)
    wait_for_listener(f"localhost:{port}", timeout_s=0)


def test_only_the_rendezvous_machine_opens_the_store(port: int):
    store = open_store(f"localhost:{port}")
    assert store is not None
    socket.create_connection(("localhost", port)).close()
    assert open_store(None) is None
    assert open_store("192.0.2.1:29500") is None
