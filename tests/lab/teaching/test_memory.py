"""The measured memory includes tensors."""

from __future__ import annotations

import pytest
import torch

from trueloop.lab.teaching import memory
from trueloop.lab.teaching.memory import Meter, describe_method, used_bytes


def test_a_tensor_is_counted_while_it_is_alive():
    before = used_bytes()
    tensor = torch.ones(4 << 20)
    allocated = used_bytes() - before
    assert 0.9 * tensor.nbytes < allocated < 1.5 * tensor.nbytes
    if "malloc" in describe_method():  # what is resident may stay
        del tensor
        assert abs(used_bytes() - before) < 1 << 20


def test_a_slow_measurement_is_made_less_often(monkeypatch: pytest.MonkeyPatch):
    now, reads = [0.0], list[int]()

    def read() -> int:
        now[0] += 1.0  # second: a large heap
        reads.append(len(reads))
        return reads[-1]

    monkeypatch.setattr(memory, "perf_counter", lambda: now[0])
    monkeypatch.setattr(memory, "used_bytes", read)
    meter, readings = Meter(0.1), list[int]()
    for _ in range(30):
        readings.append(meter.read())
        now[0] += 1.0
    assert len(reads) == 4  # of 33 seconds
    assert readings == sorted(readings)
