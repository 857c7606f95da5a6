"""Digests that ranks exchange: no rank waits, no old digest is compared, and nothing remains afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist

from trueloop.tracing.replicas import digest_exchange as module
from trueloop.tracing.replicas.digest_exchange import DigestStore, RankDigest, StoreConnection
from trueloop.tracing.replicas.tensor_digest import TensorDigest


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make_digest(
    store: Any, rank: int, round_key: tuple[int, int], value: float = 1.0, *, ready: bool = True
) -> RankDigest:
    numbers = torch.tensor([[value, -value, 0.5, 1e300]], dtype=torch.float64)
    return RankDigest(
        store=lambda: store, name="model", round_key=round_key, slot=1, rank=rank, other_rank=1 - rank,
        digest=TensorDigest(numbers, lambda: ready),
    )  # fmt: skip


def wait_until(condition: Any) -> bool:
    """Wait up to 10 s; return whether the condition is true."""
    deadline = monotonic() + 10
    while not condition() and monotonic() < deadline:
        sleep(0.002)
    return bool(condition())


def thread_count() -> int:
    return sum(thread.name == "trueloop-ranks" for thread in threading.enumerate())


def test_each_rank_gets_the_other_digest_and_threads_end():
    store = dist.HashStore()
    zero, one = DigestStore(), DigestStore()
    zero.send(make_digest(store, 0, (3, 40), 2.5))
    assert thread_count() == 1
    one.send(make_digest(store, 1, (3, 40), 7.5))
    assert wait_until(lambda: zero.responses and one.responses)
    assert zero.responses.popleft()[1] == [[7.5, -7.5, 0.5, 1e300]]
    assert one.responses.popleft()[1] == [[2.5, -2.5, 0.5, 1e300]]
    assert wait_until(lambda: not thread_count())
    assert not zero.errors


def test_only_digests_of_the_same_round_are_compared():
    store = dist.HashStore()
    zero, one = DigestStore(), DigestStore()
    one.send(make_digest(store, 1, (4, 50)))  # it is ahead: round 3 will not come any more
    wait_until(lambda: store.check(["trueloop/model/1/1"]))
    zero.send(make_digest(store, 0, (3, 40)))
    assert wait_until(lambda: not zero._pending)
    assert not zero.responses
    zero.send(make_digest(store, 0, (5, 60)))  # it is behind: its newest is waited for, by the thread
    sleep(0.05)
    assert zero._pending
    one.send(make_digest(store, 1, (5, 60)))
    assert wait_until(lambda: zero.responses)
    for each in (zero, one):
        each.close()
    assert not thread_count()


def test_a_silent_rank_blocks_no_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "DETACH_TIMEOUT_S", 0.05)
    alone = DigestStore()
    begun = monotonic()
    for round_ in range(100):
        alone.send(make_digest(dist.HashStore(), 0, (round_, round_)))
    assert len(alone._pending) <= module.MAX_IN_FLIGHT
    alone.close()
    assert monotonic() - begun < 5
    assert not thread_count()
    assert not alone.responses


def test_pending_device_results_are_not_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "DETACH_TIMEOUT_S", 0.05)
    store, alone = dist.HashStore(), DigestStore()
    alone.send(make_digest(store, 0, (1, 1), ready=False))
    sleep(0.05)
    assert not store.check(["trueloop/model/1/0"])
    alone.close()


def test_a_closed_store_ends_the_exchange_and_errors_are_reported():
    class Gone:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def set(self, *words: str) -> None:
            raise self.error

    gone = DigestStore()
    gone.send(make_digest(Gone(dist.DistNetworkError("Broken pipe")), 0, (1, 1)))
    assert wait_until(lambda: not thread_count())
    assert not gone.errors
    gone.send(make_digest(Gone(TypeError("ours")), 0, (2, 2)))
    assert wait_until(lambda: gone.errors)
    assert not gone.responses


def test_after_the_group_is_destroyed_the_store_is_not_read():
    dist.destroy_process_group()
    alone, store = DigestStore(), dist.HashStore()
    alone.send(make_digest(store, 0, (1, 1)))
    assert wait_until(lambda: not thread_count())
    assert not store.check(["trueloop/model/1/0"])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_a_network_store_gets_one_separate_connection():
    dist.destroy_process_group()
    theirs = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("gloo", store=theirs, rank=0, world_size=1)
    stores = StoreConnection()
    ours = stores.opener()()
    assert ours is not theirs
    assert stores.opener()() is ours
    ours.set("trueloop/x", "1")
    assert theirs.get("trueloop/x") == b"1"
