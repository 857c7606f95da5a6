"""Batches are copied on a stream of their own; doubles of CUDA's streams record the order of queued work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from trueloop.training.memory.transfer import PrefetchStream, make_device_transfer

CPU = torch.device("cpu")


class Streams:
    """The used part of `torch.cuda`; records what is queued on which stream."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = self.Stream(CPU, "work")

    def Stream(self, device: torch.device, name: str = "aside") -> Any:
        log = self.log

        class One:
            def wait_stream(self, other: Any) -> None:
                log.append(f"{name} waits for {other.name}")

        result: Any = One()
        result.name = name
        return result

    def current_stream(self, device: torch.device) -> Any:
        return self.current

    @contextmanager
    def stream(self, other: Any) -> Iterator[None]:
        before, self.current = self.current, other
        yield
        self.current = before


class TrackedTensor(torch.Tensor):
    """A tensor that records where it is copied and which streams use it."""

    streams: Streams

    def to(self, device: torch.device) -> TrackedTensor:  # type: ignore[override]
        self.streams.log.append(f"copied on {self.streams.current.name}")
        return self

    def record_stream(self, s: Any) -> None:
        self.streams.log.append(f"kept for {s.name}")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    result = Streams()
    monkeypatch.setattr(TrackedTensor, "streams", result, raising=False)
    return result


def test_the_copy_is_queued_on_its_own_stream_and_the_work_waits_for_it(streams: Streams):
    bring = PrefetchStream(CPU, streams)
    x, y = torch.zeros(2).as_subclass(TrackedTensor), torch.ones(2).as_subclass(TrackedTensor)
    for batch in ((x, y), {"x": x, "deep": [y, "text"]}):
        streams.log.clear()
        assert bring(batch) is batch
        assert streams.log == [
            "copied on aside", "copied on aside", "work waits for aside", "kept for work", "kept for work"
        ]  # fmt: skip
    assert streams.current.name == "work"


def test_a_batch_with_unknown_tensors_is_copied_on_the_main_stream(streams: Streams):
    class Graph:
        def to(self, device: torch.device) -> Graph:
            streams.log.append(f"copied on {streams.current.name}")
            return self

    PrefetchStream(CPU, streams)((Graph(), torch.zeros(1)))
    assert streams.log == ["copied on work"]


def test_on_the_cpu_a_batch_is_returned_unchanged():
    batch = object()
    assert make_device_transfer(CPU)(batch) is batch
    assert isinstance(make_device_transfer(torch.device("cuda", 0)), PrefetchStream)
    moved = make_device_transfer(torch.device("meta"))({"x": torch.zeros(1)})
    assert moved["x"].is_meta


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_values_are_copied_during_other_work():
    device = torch.device("cuda", 0)
    bring = make_device_transfer(device)
    busy = torch.randn(2000, 2000, device=device)
    totals = []
    for number in range(50):
        busy = (busy @ busy).tanh()
        moved = bring(torch.full((1000, 1000), float(number)).pin_memory())
        totals.append(moved.sum() + 0 * busy.sum())
        del moved
    assert [int(total) for total in totals] == [number * 10**6 for number in range(50)]
