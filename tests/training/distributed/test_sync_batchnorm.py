"""SyncBatchNorm is used where torch supports it, and refused with an explanation elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.training.distributed.processes import SINGLE_PROCESS, Processes
from trueloop.training.distributed.sync_batchnorm import convert_sync_batchnorm

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TWO = Processes(0, 2, CPU)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16)))


def test_layers_are_replaced_and_parameters_and_buffers_stay():
    model = net()
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert convert_sync_batchnorm(model, CUDA, TWO) == ["1", "2.1"]
    assert isinstance(model[1], nn.SyncBatchNorm)
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert convert_sync_batchnorm(model, CUDA, TWO) == []


def test_one_process_or_no_batchnorm_changes_nothing():
    model, linear = net(), nn.Linear(2, 2)
    assert convert_sync_batchnorm(model, CPU, SINGLE_PROCESS) == []
    assert isinstance(model[1], nn.BatchNorm2d)
    assert convert_sync_batchnorm(linear, CPU, TWO) == []


def test_the_cpu_is_refused():
    with pytest.raises(InvalidConfig, match="device is 'cpu'") as caught:
        convert_sync_batchnorm(net(), CPU, TWO)
    assert "own micro-batch" in caught.value.fix


def test_a_model_that_is_a_batchnorm_layer_is_refused():
    with pytest.raises(InvalidModel, match="BatchNorm1d"):
        convert_sync_batchnorm(nn.BatchNorm1d(3), CUDA, TWO)
