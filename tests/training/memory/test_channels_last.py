"""Channels-last changes the memory layout but no values."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.training.assemble import assemble
from trueloop.training.config import OptimConfig, ParallelConfig, TrainConfig
from trueloop.training.distributed.processes import Processes
from trueloop.training.loop import train_epoch
from trueloop.training.memory.channels_last import match_state_layout, use_channels_last

CONFIG = TrainConfig(effective_batch=8, optim=OptimConfig(name="adamw", lr=0.05))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(80, 3)
    )  # fmt: skip


def images(size: int = 24):
    g = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, 6, 6, generator=g), torch.randint(0, 3, (size,), generator=g)


def is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def test_weights_outputs_and_gradients_are_channels_last():
    model = network()
    before, first = copy.deepcopy(model.state_dict()), model[0].weight
    assert use_channels_last(model) == ["0", "2"]
    assert model[0].weight is first
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    out = model[:3](images()[0])
    out.sum().backward()
    assert is_channels_last(model[2].weight)
    assert not model[2].weight.is_contiguous()
    assert is_channels_last(out)
    assert is_channels_last(model[2].weight.grad)


def test_three_dimensional_convolutions_use_channels_last_3d():
    model = nn.Sequential(nn.Conv3d(2, 4, 3), nn.Conv1d(2, 2, 3))
    assert use_channels_last(model) == ["0"]
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last_3d)


def test_a_model_without_convolutions_is_refused():
    with pytest.raises(InvalidModel, match="Linear has no convolution"):
        use_channels_last(nn.Linear(2, 2))


def test_sharded_parameters_are_refused():
    two_processes = Processes(0, 2, torch.device("cpu"))
    config = replace(CONFIG, channels_last=True, parallel=ParallelConfig(engine="fsdp"))
    with pytest.raises(InvalidConfig, match="sharded"):
        assemble(
            network(),
            nn.CrossEntropyLoss(),
            config,
            device=two_processes.device,
            updates_per_epoch=3,
            processes=two_processes,
        )


def trained(build: Any, windowed: Any, config: TrainConfig, state: Any = None) -> Any:
    parts = build(network(), nn.CrossEntropyLoss(), config)
    if state:
        parts.model.load_state_dict(state["model"])
        parts.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        match_state_layout(parts.optimizer)
    for _ in train_epoch(parts, windowed(*images(), effective=8).epoch(0), update=1 if state else 0):
        pass
    return parts


def test_training_is_the_same_and_resumes_from_the_other_layout(build: Any, windowed: Any):
    plain, converted = (
        trained(build, windowed, CONFIG),
        trained(build, windowed, replace(CONFIG, channels_last=True)),
    )
    assert is_channels_last(converted.model[2].weight)
    for a, b in zip(plain.model.parameters(), converted.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    state = {"model": plain.model.state_dict(), "optimizer": plain.optimizer.state_dict()}
    state = copy.deepcopy(state)
    straight, changed = (
        trained(build, windowed, CONFIG, state),
        trained(build, windowed, replace(CONFIG, channels_last=True), state),
    )
    moment = changed.optimizer.state[changed.model[2].weight]["exp_avg"]
    assert moment.stride() == changed.model[2].weight.stride()
    for a, b in zip(straight.model.parameters(), changed.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
