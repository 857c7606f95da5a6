"""The time of the parts and operations of an update."""

from __future__ import annotations

import gzip
import json
import time

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidData
from trueloop.training.config import TrainConfig
from trueloop.training.profiling.profile import PARTS, profile_updates

X = torch.randn(20, 1, 12, 12, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 3


class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.02)
        return x


class SlowData:
    updates_per_epoch = 5

    def __init__(self, source):
        self.source = source

    def epoch(self, epoch, skip_updates=0):
        for micro in self.source.epoch(epoch, skip_updates):
            time.sleep(0.02)
            yield micro


def network(*more):
    torch.manual_seed(0)
    return nn.Sequential(*more, nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 3))


def test_the_parts_sum_to_one_and_operations_are_counted(windowed, build):
    parts = build(network(), nn.CrossEntropyLoss(), TrainConfig())
    profile = profile_updates(parts, windowed(X, Y, effective=4, micro=2), updates=6)
    assert tuple(profile.split) == PARTS
    assert sum(profile.split.values()) == pytest.approx(1)
    assert all(share > 0 for share in profile.split.values())
    assert profile.updates == 6
    calls = {each.name: each.calls for each in profile.operations}
    assert calls["aten::convolution_backward"] == 12, "two micro-batches in each of six updates"
    assert {each.name: each.calls for each in profile.backward}["ConvolutionBackward0"] == 12
    assert profile.bottleneck == profile.backward[0].name
    for listed in (profile.operations, profile.backward):
        assert [each.seconds for each in listed] == sorted((each.seconds for each in listed), reverse=True)


def test_the_slow_part_has_the_largest_share(windowed, build):
    slow_forward = build(network(Slow()), nn.CrossEntropyLoss(), TrainConfig())
    profile = profile_updates(slow_forward, windowed(X, Y, effective=4), updates=3)
    assert max(profile.split, key=profile.split.__getitem__) == "forward"
    assert profile.update_s > 0.02
    quick = build(network(), nn.CrossEntropyLoss(), TrainConfig())
    profile = profile_updates(quick, SlowData(windowed(X, Y, effective=4)), updates=3)
    assert max(profile.split, key=profile.split.__getitem__) == "data"


def test_a_trace_is_written(windowed, build, tmp_path):
    parts = build(network(), nn.CrossEntropyLoss(), TrainConfig())
    path = tmp_path / "trace.json.gz"
    assert profile_updates(parts, windowed(X, Y, effective=4), updates=1, trace=path).trace == path
    names = {each.get("name") for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert {"trueloop: data", "trueloop: forward", "trueloop: update", "aten::convolution_backward"} <= names


def test_data_without_a_window_is_refused(build):
    class Empty:
        updates_per_epoch = 0

        def epoch(self, epoch, skip_updates=0):
            return iter(())

    with pytest.raises(InvalidData, match="no window to train on"):
        profile_updates(build(network(), nn.CrossEntropyLoss(), TrainConfig()), Empty(), updates=1)
