"""Processes connect through a store with keys of earlier attempts, and enable keepalive."""

from __future__ import annotations

import socket
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from trueloop.core.errors import ProcessLost
from trueloop.training.distributed import rendezvous
from trueloop.training.distributed.launcher_env import LaunchInfo, local_address_for
from trueloop.training.distributed.rendezvous import _fresh_store, _interface_of, _open_sockets, enable_keepalive


def launch_info(rank: int, size: int) -> LaunchInfo:
    return LaunchInfo(
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        node=0,
        nodes=1,
        address="localhost",
        port=1,
        launcher="torchrun",
    )


def connect_all(store: dist.Store, size: int, timeout_s: float = 20) -> list[dist.Store]:
    """Connect all processes of a run at the same time, each on its own thread."""
    result: list[dist.Store] = [store] * size

    def connect(rank: int) -> None:
        result[rank] = _fresh_store(store, launch_info(rank, size), timeout_s)

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result


@pytest.fixture
def store() -> dist.Store:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=20))
    return store


def test_processes_share_a_prefix_that_no_earlier_attempt_used(store: dist.Store):
    for _ in range(3):
        parts = connect_all(store, 3)
        assert not any(part.check(["address of rank 1"]) for part in parts)
        parts[1].set("address of rank 1", "here")
        assert all(part.get("address of rank 1") == b"here" for part in parts)


def test_a_missing_rank_is_reported_even_if_an_earlier_attempt_had_it(store: dist.Store):
    connect_all(store, 2)
    with pytest.raises(ProcessLost, match=r"2 processes of 3 did not connect to localhost:1: rank 1, 2\.") as lost:
        _fresh_store(store, launch_info(0, 3), 0.1)
    assert "timeout_s" in lost.value.why


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own names of sockets")
def test_keepalive_is_enabled_on_new_connections_only():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as earlier:
        before = _open_sockets()
        with socket.create_connection(server.getsockname()) as later:
            enable_keepalive(_open_sockets() - before, keepalive_timeout_s=8)
            options = [each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in (earlier, later)]
            assert [bool(value) for value in options] == [False, True]
            assert later.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000
            assert later.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_a_route_to_another_machine_has_an_address_and_an_interface():
    assert local_address_for("127.0.0.1", 80) == "127.0.0.1"
    assert local_address_for("no.such.host.invalid", 80) == ""
    assert _interface_of("127.0.0.1") == "lo"
    assert _interface_of("203.0.113.9") == ""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own names of sockets")
def test_keepalive_is_enabled_on_later_connections(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "_SCAN_INTERVAL_S", 0.01)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        rendezvous.keepalive_for_new_connections(8),
        socket.create_connection(server.getsockname()) as later,
    ):
        deadline = time.monotonic() + 20
        while later.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) != 8000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
