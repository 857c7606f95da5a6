"""Settings that cannot work are named with their value."""

from __future__ import annotations

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

BAD = [
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
    ({"ema": 1.0}, "ema is 1.0"),
    ({"precision": "fp8"}, "precision is 'fp8'"),
    ({"freeze": "backbone.*"}, "freeze is 'backbone"),
    ({"freeze": (1,)}, "freeze is"),
    ({"optim": OptimConfig(lr=0.0)}, "optim.lr is 0.0"),
    ({"optim": OptimConfig(lr=float("inf"))}, "optim.lr is inf"),
    ({"optim": OptimConfig(betas=(0.9, 1.0))}, "optim.betas"),
    ({"optim": OptimConfig(name="adamww")}, "optim.name is 'adamww'"),
    ({"optim": {"lr": 0.1}}, "optim is"),
    ({"schedule": ScheduleConfig(warmup=1.0)}, "schedule.warmup is 1.0"),
    ({"schedule": ScheduleConfig(floor=2.0)}, "schedule.floor"),
    ({"monitor": MonitorConfig(patience=0)}, "monitor.patience is 0"),
    ({"monitor": MonitorConfig(mode="best")}, "monitor.mode is 'best'"),
    ({"checkpoint": CheckpointConfig(keep_last=0)}, "checkpoint.keep_last is 0"),
    ({"checkpoint": CheckpointConfig(mirror="bucket/run")}, "checkpoint.mirror is 'bucket/run'"),
    ({"checkpoint": CheckpointConfig(mirror="file:///")}, "checkpoint.mirror is 'file:///'"),
    ({"checkpoint": CheckpointConfig(mirror="://x")}, "checkpoint.mirror is '://x'"),
    ({"checkpoint": CheckpointConfig(blocking=1)}, "checkpoint.blocking is 1"),
    ({"guard": GuardConfig(max_in_a_row=0)}, "guard.max_in_a_row is 0"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_what_cannot_work_is_named(change, words):
    with pytest.raises(InvalidConfig) as caught:
        validate(replace(TrainConfig(), **change))
    assert words in str(caught.value)
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


def test_the_defaults_and_whole_numbers_for_numbers_are_fine():
    validate(TrainConfig())
    validate(TrainConfig(clip=1, optim=OptimConfig(lr=1)))


def test_every_law_names_a_setting_that_exists():
    for name in _CONSTRAINTS:
        value = TrainConfig()
        for part in name.split("."):
            value = getattr(value, part)
