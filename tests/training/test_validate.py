"""Invalid settings are refused with their name and value."""

from __future__ import annotations

import operator
from dataclasses import replace

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.training.config import (
    CheckpointConfig,
    GuardConfig,
    MonitorConfig,
    OptimConfig,
    ScheduleConfig,
    TrainConfig,
)
from trueloop.training.validate import _CONSTRAINTS, validate

INVALID = [
    ({"epochs": 0}, "epochs is 0"),
    ({"threads": 0}, "threads is 0"),
    ({"threads": 10**10}, "threads is 10000000000"),
    ({"epochs": "3"}, "epochs is '3', a str"),
    ({"epochs": 2.5}, "epochs is 2.5, a float"),
    ({"epochs": True}, "epochs is True, a bool"),
    ({"effective_batch": -1}, "effective_batch is -1"),
    ({"micro_batch": 0}, "micro_batch is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"clip": 0.0}, "clip is 0.0"),
    ({"clip": float("nan")}, "clip is nan"),
    ({"clip": "none"}, "clip is 'none'"),
    *(({"ema": decay}, f"ema is {decay}") for decay in (0.0, 1.0, -0.1, 1.1, float("nan"))),
    ({"precision": "fp8"}, "precision is 'fp8'"),
    ({"freeze": "backbone.*"}, "freeze is 'backbone"),
    ({"freeze": (1,)}, "freeze is"),
    ({"optim": OptimConfig(lr=0.0)}, "optim.lr is 0.0"),
    ({"optim": OptimConfig(lr=float("inf"))}, "optim.lr is inf"),
    ({"optim": OptimConfig(lr=float("nan"))}, "optim.lr is nan"),
    ({"optim": OptimConfig(weight_decay=-0.1)}, "optim.weight_decay is -0.1"),
    ({"optim": OptimConfig(betas=(0.9, 1.0))}, "optim.betas"),
    ({"optim": OptimConfig(name="adamww")}, "optim.name is 'adamww'"),
    ({"optim": {"lr": 0.1}}, "optim is"),
    ({"schedule": ScheduleConfig(warmup=1.0)}, "schedule.warmup is 1.0"),
    ({"schedule": ScheduleConfig(warmup=-0.1)}, "schedule.warmup is -0.1"),
    ({"schedule": ScheduleConfig(warmup=float("nan"))}, "schedule.warmup is nan"),
    ({"schedule": ScheduleConfig(floor=1.0)}, "schedule.floor is 1.0"),
    ({"schedule": ScheduleConfig(floor=-1e-9)}, "schedule.floor is -1e-09"),
    ({"schedule": ScheduleConfig(gamma=0.0)}, "schedule.gamma is 0.0"),
    ({"schedule": ScheduleConfig(gamma=float("inf"))}, "schedule.gamma is inf"),
    ({"schedule": ScheduleConfig(step_epochs=0)}, "schedule.step_epochs is 0"),
    ({"schedule": ScheduleConfig(name="cosin")}, "schedule.name is 'cosin'"),
    ({"monitor": MonitorConfig(patience=0)}, "monitor.patience is 0"),
    ({"monitor": MonitorConfig(min_delta=-1e-9)}, "monitor.min_delta is -1e-09"),
    ({"monitor": MonitorConfig(min_delta=float("nan"))}, "monitor.min_delta is nan"),
    ({"monitor": MonitorConfig(min_delta=float("inf"))}, "monitor.min_delta is inf"),
    ({"monitor": MonitorConfig(mode="best")}, "monitor.mode is 'best'"),
    ({"checkpoint": CheckpointConfig(keep_last=0)}, "checkpoint.keep_last is 0"),
    ({"checkpoint": CheckpointConfig(mirror="bucket/run")}, "checkpoint.mirror is 'bucket/run'"),
    ({"checkpoint": CheckpointConfig(mirror="file:///")}, "checkpoint.mirror is 'file:///'"),
    ({"checkpoint": CheckpointConfig(mirror="://x")}, "checkpoint.mirror is '://x'"),
    ({"checkpoint": CheckpointConfig(blocking=1)}, "checkpoint.blocking is 1"),
    ({"guard": GuardConfig(max_in_a_row=0)}, "guard.max_in_a_row is 0"),
]


@pytest.mark.parametrize(("change", "message"), INVALID)
def test_invalid_settings_are_refused(change, message):
    with pytest.raises(InvalidConfig) as caught:
        validate(replace(TrainConfig(), **change))
    assert message in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("name", ["cosine", "linear", "onecycle"])
def test_epochs_at_rate_zero_are_refused(name):
    short = ScheduleConfig(name=name, horizon_epochs=5)
    with pytest.raises(InvalidConfig, match="schedule.horizon_epochs is 5, and epochs is 6"):
        validate(TrainConfig(epochs=6, schedule=short))
    validate(TrainConfig(epochs=5, schedule=short))
    validate(TrainConfig(epochs=4, schedule=short))
    if name != "onecycle":
        validate(TrainConfig(epochs=6, schedule=replace(short, floor=0.1)))


def test_the_defaults_and_integers_for_floats_are_valid():
    validate(TrainConfig())
    validate(TrainConfig(clip=1, optim=OptimConfig(lr=1)))


def test_every_constraint_is_for_an_existing_setting():
    for name in _CONSTRAINTS:
        operator.attrgetter(name)(TrainConfig())  # raises an AttributeError for another name
