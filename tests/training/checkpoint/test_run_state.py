"""What a resumed run restores, which changes it refuses, and what it does if changes are allowed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.checkpoint.resume_epoch import EpochOrder
from trueloop.training.checkpoint.run_identity import identify
from trueloop.training.checkpoint.run_state import RunState
from trueloop.training.config import MonitorConfig, OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.evaluation.monitor import Monitor
from trueloop.training.loop import train_epoch

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 4, generator=G), torch.randint(0, 3, (32,), generator=G)
CONFIG = TrainConfig(epochs=4, effective_batch=8, optim=OptimConfig(lr=0.01))


def network(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


class Nothing:
    """A source without batches."""

    updates_per_epoch = 4

    def epoch(self, epoch, skip_updates=0):
        return iter(())


def new_state(build, config: TrainConfig = CONFIG, width: int = 8, **components) -> RunState:
    torch.manual_seed(config.seed)
    objective = nn.CrossEntropyLoss()
    parts = build(network(width), objective, config, **components)
    state = RunState(parts, Monitor(config.monitor), EpochOrder(Nothing()))
    facts = {"data": {"train": "32:sha256:aa"}, "options": {"width": width}}
    state.identity = identify(
        config, parts, objective=objective, extra=facts, has_user_optimizer="optimizer" in components
    )
    return state


def saved_state(build, windowed, config: TrainConfig = CONFIG, updates: int = 6, **components) -> dict:
    """Return the saved state after some updates of 4 each epoch."""
    state = new_state(build, config, **components)
    for epoch in range(-(-updates // 4)):
        steps = train_epoch(state.assembly, windowed(X, Y, effective=8).epoch(epoch), update=epoch * 4)
        for _ in zip(range(min(4, updates - epoch * 4)), steps, strict=False):
            state.position.update += 1
    state.position.epoch, state.position.update_in_epoch = divmod(updates, 4)
    return deepcopy(state.state_dict())


def test_an_unchanged_run_only_reports_where_it_continues(build, windowed):
    saved = saved_state(build, windowed)
    repeated = new_state(build)
    assert [(r.kind, r.message) for r in repeated.resume(saved, 4)] == [
        ("resumed", "The run continues after update 6.")
    ]
    assert all(torch.equal(v, saved["model"][k]) for k, v in repeated.assembly.model.state_dict().items())
    assert repeated.state_dict()["identity"] == saved["identity"]
    assert (repeated.position.epoch, repeated.position.update_in_epoch) == (1, 2)


def test_harmless_changes_are_in_the_details(build, windowed):
    (remark,) = new_state(build, replace(CONFIG, workers=2)).resume(saved_state(build, windowed), 4)
    assert remark.details == {"changed": ["workers: was none, is 2"]}


def test_inexact_changes_are_reported(build, windowed):
    remarks = new_state(build, replace(CONFIG, micro_batch=2)).resume(saved_state(build, windowed), 4)
    assert [remark.kind for remark in remarks] == ["resumed", "resumed_inexact"]
    assert (
        remarks[1].message
        == "The run is the same, but no longer bitwise equal to the uninterrupted one: micro_batch: was 8, is 2."
    )


def test_another_run_is_refused_without_changes(build, windowed):
    saved = saved_state(build, windowed)
    other = new_state(build, replace(CONFIG, seed=1))
    before = deepcopy(other.assembly.model.state_dict())
    with pytest.raises(CheckpointError, match="seed: was 0, is 1"):
        other.resume(saved, 4)
    assert all(torch.equal(value, before[name]) for name, value in other.assembly.model.state_dict().items())
    assert other.position.update == 0


def test_fewer_epochs_than_done_are_refused_even_in_mid_epoch(build, windowed):
    with pytest.raises(InvalidConfig, match="epochs is 1, but .* 6 updates and is in epoch 2"):
        new_state(build, replace(CONFIG, epochs=1)).resume(saved_state(build, windowed), 1)


def test_a_checkpoint_without_an_identity_is_continued_with_a_note(build, windowed):
    saved = saved_state(build, windowed)
    del saved["identity"]
    remarks = new_state(build).resume(saved, 4)
    assert [remark.kind for remark in remarks] == ["resumed", "resumed_inexact"]
    assert "nothing could be compared" in remarks[1].message


# Changes that are allowed


def test_allow_change_uses_the_new_rate_and_decay(build, windowed):
    saved = saved_state(build, windowed)
    other = new_state(build, replace(CONFIG, optim=OptimConfig(lr=0.5, weight_decay=0.25)))
    remarks = other.resume(saved, 4, allow_change=True)
    assert remarks[-1].kind == "resumed_changed"
    assert remarks[-1].details["changed"] == [
        "optim.lr: was 0.01, is 0.5",
        "optim.weight_decay: was 0.01, is 0.25",
    ]
    assert max(group["weight_decay"] for group in other.assembly.optimizer.param_groups) == 0.25
    other.assembly.schedule.set(0)
    assert other.assembly.optimizer.param_groups[0]["lr"] == 0.5
    moments = next(iter(other.assembly.optimizer.state_dict()["state"].values()))
    expected = next(iter(saved["optimizer"]["state"].values()))
    assert torch.equal(moments["exp_avg"], expected["exp_avg"])


def test_another_optimizer_starts_without_moments(build, windowed):
    other = new_state(build, replace(CONFIG, optim=OptimConfig(name="sgd", lr=0.01)))
    other.resume(saved_state(build, windowed), 4, allow_change=True)
    assert not other.assembly.optimizer.state_dict()["state"]


def test_an_epoch_with_another_order_restarts(build, windowed):
    other = new_state(build, replace(CONFIG, seed=1))
    remarks = other.resume(saved_state(build, windowed), 4, allow_change=True)
    assert remarks[0].message == "The run continues after update 6; epoch 2 restarts, because its order has changed."
    assert (other.position.epoch, other.position.update, other.position.update_in_epoch) == (1, 6, 0)


def test_a_new_average_starts_at_the_saved_weights(build, windowed):
    saved = saved_state(build, windowed)
    other = new_state(build, replace(CONFIG, ema=0.9))
    other.resume(saved, 4, allow_change=True)
    assert all(torch.equal(v, saved["model"][k]) for k, v in other.assembly.average.state_dict().items())


def test_another_monitor_metric_starts_without_a_best_value(build, windowed):
    saved = saved_state(build, windowed)
    saved["monitor"]["best_value"], saved["monitor"]["best_update"] = 0.5, 4
    other = new_state(build, replace(CONFIG, monitor=MonitorConfig(metric="val/accuracy", mode="max")))
    other.resume(saved, 4, allow_change=True)
    assert other.monitor.best_value is None


def test_float16_starts_with_a_new_loss_scale(build, windowed):
    other = new_state(build, replace(CONFIG, precision="fp16"))
    other.resume(saved_state(build, windowed), 4, allow_change=True)
    assert float(other.assembly.scale.scale) == 65536.0


@pytest.mark.parametrize("width", [4, 16])
def test_a_state_that_does_not_fit_is_refused_even_with_allow_change(build, windowed, width):
    with pytest.raises(CheckpointError, match="does not fit this model"):
        new_state(build, width=width).resume(saved_state(build, windowed), 4, allow_change=True)


def test_newly_frozen_parameters_are_refused(build, windowed):
    with pytest.raises(CheckpointError, match="does not fit this model"):
        new_state(build, replace(CONFIG, freeze=("0.*",))).resume(saved_state(build, windowed), 4, allow_change=True)


def test_a_custom_scheduler_continues_from_its_rates(build, windowed):
    components = {
        "optimizer": lambda ps: torch.optim.SGD(ps, lr=1.0, momentum=0.5),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    }
    saved = saved_state(build, windowed, updates=3, **components)
    other = new_state(build, replace(CONFIG, clip=None), **components)
    other.resume(saved, 4, allow_change=True)
    assert other.assembly.optimizer.param_groups[0]["lr"] == 0.125


# More epochs


def test_a_changed_horizon_is_reported_with_both_rates(build, windowed):
    saved = saved_state(build, windowed, replace(CONFIG, schedule=ScheduleConfig(horizon_epochs=4)))
    other = new_state(build, replace(CONFIG, schedule=ScheduleConfig(horizon_epochs=8)))
    (remark,) = other.resume(saved, 4)
    assert remark.message == (
        f"The run continues after update 6; the schedule ends at update 32 instead of 16, so the rate is "
        f"{other.assembly.schedule.factor(6):.3g} of its peak here instead of 0.691 "
        "(schedule.horizon_epochs keeps the old end)."
    ), remark.message


@pytest.mark.parametrize("name", ["constant", "step"])
def test_a_schedule_without_an_end_reports_no_horizon(build, windowed, name):
    def with_horizon(epochs: int) -> TrainConfig:
        return replace(CONFIG, schedule=ScheduleConfig(name=name, horizon_epochs=epochs))

    (remark,) = new_state(build, with_horizon(8)).resume(saved_state(build, windowed, with_horizon(4)), 4)
    assert remark.message == "The run continues after update 6."
