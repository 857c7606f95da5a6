import os
import random

import pytest

from trueloop.data import worker_count
from trueloop.data.worker_count import choose_workers


class Clock:
    """Time that passes only while samples are read."""

    def __init__(self, sample_s: float) -> None:
        self.now, self.sample_s, self.read = 0.0, sample_s, []

    def __call__(self, indices: list[int]) -> None:
        random.random()
        self.read += indices
        self.now += self.sample_s * len(indices)

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("sample_s", "samples", "cores", "processes", "expected"),
    [
        (1e-2, 10_000, 2, 1, 1),
        (1e-2, 10_000, 8, 1, 7),
        (1e-2, 10_000, 64, 1, 8),
        (1e-2, 10_000, 8, 2, 3),
        (1e-2, 10_000, 8, 8, 0),
        (1e-2, 10_000, 1, 1, 0),
        (1e-2, 100, 8, 1, 0),  # an epoch of one second ends before the workers have started
        (1e-5, 10**9, 8, 1, 0),  # reading a sample is faster than sending it
        (1e2, 5, 8, 1, 0),
        (1e2, 6, 8, 1, 7),
    ],
)
def test_workers_are_started_if_they_save_time(monkeypatch, sample_s, samples, cores, processes, expected):
    clock = Clock(sample_s)
    monkeypatch.setattr(worker_count.time, "perf_counter", clock.perf_counter)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    state = random.getstate()
    assert choose_workers(clock, samples, processes) == expected
    assert random.getstate() == state
    assert len(clock.read) in (0, 5)
    assert all(0 <= index < samples for index in clock.read)
