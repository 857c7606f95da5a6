"""What a resumed run takes over, what it refuses, and what it keeps of its own where a change is allowed."""

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
    """A source that is only there to be named."""

    updates_per_epoch = 4

    def epoch(self, epoch, skip_updates=0):
        return iter(())


def fresh(build, config: TrainConfig = CONFIG, width: int = 8, **given) -> RunState:
    torch.manual_seed(config.seed)
    objective = nn.CrossEntropyLoss()
    parts = build(network(width), objective, config, **given)
    state = RunState(parts, Monitor(config.monitor), EpochOrder(Nothing()))
    facts = {"data": {"train": "32:sha256:aa"}, "options": {"width": width}}
    state.identity = identify(config, parts, objective=objective, extra=facts, own_optimizer="optimizer" in given)
    return state


def trained(build, cut, config: TrainConfig = CONFIG, updates: int = 6, **given) -> dict:
    """Return the saved state after some updates of 4 each epoch."""
    state = fresh(build, config, **given)
    for epoch in range(-(-updates // 4)):
        steps = train_epoch(state.parts, cut(X, Y, effective=8).epoch(epoch), update=epoch * 4)
        for _ in zip(range(min(4, updates - epoch * 4)), steps, strict=False):
            state.position.update += 1
    state.position.epoch, state.position.update_in_epoch = divmod(updates, 4)
    return deepcopy(state.state_dict())


def test_the_same_run_says_where_it_goes_on_and_nothing_else(build, cut):
    saved = trained(build, cut)
    again = fresh(build)
    assert [(r.kind, r.message) for r in again.resume(saved, 4)] == [("resumed", "The run continues after update 6.")]
    assert all(torch.equal(v, saved["model"][k]) for k, v in again.parts.model.state_dict().items())
    assert again.state_dict()["identity"] == saved["identity"]
    assert (again.position.epoch, again.position.update_in_epoch) == (1, 2)


def test_what_is_harmless_is_in_the_details(build, cut):
    (remark,) = fresh(build, replace(CONFIG, workers=2)).resume(trained(build, cut), 4)
    assert remark.details == {"changed": ["workers: was none, is 2"]}


def test_changes_of_rounding_are_reported_by_name(build, cut):
    remarks = fresh(build, replace(CONFIG, micro_batch=2)).resume(trained(build, cut), 4)
    assert [remark.kind for remark in remarks] == ["resumed", "resumed_inexact"]
    assert remarks[1].message == "It is the same run, but no longer bitwise equal: micro_batch: was 8, is 2."


def test_another_run_is_refused_untouched(build, cut):
    saved = trained(build, cut)
    other = fresh(build, replace(CONFIG, seed=1))
    before = deepcopy(other.parts.model.state_dict())
    with pytest.raises(CheckpointError, match="seed: was 0, is 1"):
        other.resume(saved, 4)
    assert all(torch.equal(value, before[name]) for name, value in other.parts.model.state_dict().items())
    assert other.position.update == 0


def test_fewer_epochs_than_done_are_refused_also_in_mid_epoch(build, cut):
    with pytest.raises(InvalidConfig, match="epochs is 1, but .* 6 updates and is in epoch 2"):
        fresh(build, replace(CONFIG, epochs=1)).resume(trained(build, cut), 1)


def test_a_checkpoint_that_says_nothing_about_itself_is_continued_with_a_note(build, cut):
    saved = trained(build, cut)
    del saved["identity"]
    remarks = fresh(build).resume(saved, 4)
    assert [remark.kind for remark in remarks] == ["resumed", "resumed_inexact"]
    assert "nothing could be compared" in remarks[1].message


# Changes that are allowed


def test_a_changed_rate_and_decay_are_those_of_the_present_run(build, cut):
    saved = trained(build, cut)
    other = fresh(build, replace(CONFIG, optim=OptimConfig(lr=0.5, weight_decay=0.25)))
    remarks = other.resume(saved, 4, allow_change=True)
    assert remarks[-1].kind == "resumed_changed"
    assert remarks[-1].details["changed"] == [
        "optim.lr: was 0.01, is 0.5",
        "optim.weight_decay: was 0.01, is 0.25",
    ]
    assert max(group["weight_decay"] for group in other.parts.optimizer.param_groups) == 0.25
    other.parts.schedule.set(0)
    assert other.parts.optimizer.param_groups[0]["lr"] == 0.5
    moments = next(iter(other.parts.optimizer.state_dict()["state"].values()))
    theirs = next(iter(saved["optimizer"]["state"].values()))
    assert torch.equal(moments["exp_avg"], theirs["exp_avg"])


def test_another_optimizer_begins_without_moments(build, cut):
    other = fresh(build, replace(CONFIG, optim=OptimConfig(name="sgd", lr=0.01)))
    other.resume(trained(build, cut), 4, allow_change=True)
    assert not other.parts.optimizer.state_dict()["state"]


def test_an_epoch_of_another_order_restarts(build, cut):
    other = fresh(build, replace(CONFIG, seed=1))
    remarks = other.resume(trained(build, cut), 4, allow_change=True)
    assert remarks[0].message == "The run continues after update 6; epoch 2 restarts, because its order has changed."
    assert (other.position.epoch, other.position.update, other.position.update_in_epoch) == (1, 6, 0)


def test_an_average_that_was_not_kept_begins_at_the_saved_weights(build, cut):
    saved = trained(build, cut)
    other = fresh(build, replace(CONFIG, ema=0.9))
    other.resume(saved, 4, allow_change=True)
    assert all(torch.equal(v, saved["model"][k]) for k, v in other.parts.average.state_dict().items())


def test_another_metric_begins_without_a_best(build, cut):
    saved = trained(build, cut)
    saved["monitor"]["best_value"], saved["monitor"]["best_update"] = 0.5, 4
    other = fresh(build, replace(CONFIG, monitor=MonitorConfig(metric="val/accuracy", mode="max")))
    other.resume(saved, 4, allow_change=True)
    assert other.monitor.best_value is None


def test_float16_begins_with_its_own_scale(build, cut):
    other = fresh(build, replace(CONFIG, precision="fp16"))
    other.resume(trained(build, cut), 4, allow_change=True)
    assert float(other.parts.scale.scale) == 65536.0


@pytest.mark.parametrize("width", [4, 16])
def test_a_change_that_cannot_be_carried_over_is_refused_also_where_it_is_allowed(build, cut, width):
    with pytest.raises(CheckpointError, match="does not fit this model"):
        fresh(build, width=width).resume(trained(build, cut), 4, allow_change=True)


def test_parameters_frozen_since_do_not_fit_the_optimizer(build, cut):
    with pytest.raises(CheckpointError, match="does not fit this model"):
        fresh(build, replace(CONFIG, freeze=("0.*",))).resume(trained(build, cut), 4, allow_change=True)


def test_a_scheduler_of_the_users_own_goes_on_from_its_rates(build, cut):
    given = {
        "optimizer": lambda ps: torch.optim.SGD(ps, lr=1.0, momentum=0.5),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    }
    saved = trained(build, cut, updates=3, **given)
    other = fresh(build, replace(CONFIG, clip=None), **given)
    other.resume(saved, 4, allow_change=True)
    assert other.parts.optimizer.param_groups[0]["lr"] == 0.125


# More epochs


def test_a_moved_horizon_is_reported_with_both_rates(build, cut):
    saved = trained(build, cut, replace(CONFIG, schedule=ScheduleConfig(horizon_epochs=4)))
    other = fresh(build, replace(CONFIG, schedule=ScheduleConfig(horizon_epochs=8)))
    (remark,) = other.resume(saved, 4)
    assert remark.message == (
        f"The run continues after update 6; the schedule ends at update 32 instead of 16, so the rate is "
        f"{other.parts.schedule.factor(6):.3g} of its peak here instead of 0.691 "
        "(schedule.horizon_epochs keeps the old end)."
    ), remark.message


@pytest.mark.parametrize("name", ["constant", "step"])
def test_a_schedule_without_an_end_has_none_to_move(build, cut, name):
    def with_horizon(epochs: int) -> TrainConfig:
        return replace(CONFIG, schedule=ScheduleConfig(name=name, horizon_epochs=epochs))

    (remark,) = fresh(build, with_horizon(8)).resume(trained(build, cut, with_horizon(4)), 4)
    assert remark.message == "The run continues after update 6."
