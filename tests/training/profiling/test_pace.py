"""Throughput of a run, and its time spent waiting for data."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidData
from trueloop.training.config import TrainConfig
from trueloop.training.profiling.pace import WindowRunner, measure_throughput

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 3


def parts(build):
    return build(nn.Linear(4, 3), nn.CrossEntropyLoss(), TrainConfig())


def test_examples_and_waiting_are_summed_over_the_updates(windowed, build):
    class Slow:
        updates_per_epoch = 5
        inner = windowed(X, Y, effective=4, micro=2)

        def epoch(self, epoch, skip_updates=0):
            for micro in self.inner.epoch(epoch, skip_updates):
                time.sleep(0.005)
                yield micro

    throughput = measure_throughput(parts(build), Slow(), seconds=0.1)
    assert throughput.updates >= 1
    assert throughput.examples_per_s * throughput.update_s == pytest.approx(4)
    assert throughput.waiting > 0.5
    assert throughput.update_s > 0.01


def test_several_epochs_and_a_single_update(windowed, build):
    assert measure_throughput(parts(build), windowed(X[:4], Y[:4], effective=4), seconds=1e-9).updates == 1
    windows = WindowRunner(parts(build), windowed(X, Y, effective=8))
    examples = [done.examples for done, _ in zip(windows.train(), range(7), strict=False)]
    assert examples == [8, 8, 4, 8, 8, 4, 8]


def test_data_without_a_window_is_refused(build):
    class Empty:
        updates_per_epoch = 0

        def epoch(self, epoch, skip_updates=0):
            return iter(())

    with pytest.raises(InvalidData, match="no window to train on"):
        measure_throughput(parts(build), Empty(), seconds=1.0)
