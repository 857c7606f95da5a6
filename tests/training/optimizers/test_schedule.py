"""The rate equals that of torch at every update, and depends only on the update's index."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.config import ScheduleConfig
from trueloop.training.optimizers.schedule import Schedule, UserSchedule

PEAKS = (0.1, 0.003)
NAMES = ("constant", "step", "cosine", "linear", "onecycle")


def optimizer(kind=torch.optim.SGD, **settings):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": peak} for peak in PEAKS]
    return kind(groups, **settings)


def make_schedule(config, updates, updates_per_epoch=None, **settings):
    built = optimizer(**settings)
    return built, Schedule(built, config, updates=updates, updates_per_epoch=updates_per_epoch)


def rates(schedule, built, updates):
    """Return the rates of every group for every update."""
    collected = []
    for update in range(updates):
        schedule.set(update)
        collected.append([float(group["lr"]) for group in built.param_groups])
        schedule.advance()
    return collected


def torch_rates(scheduler, built, updates):
    collected = []
    for _ in range(updates):
        collected.append([group["lr"] for group in built.param_groups])
        built.step()
        scheduler.step()
    return collected


def equal(left, right):
    return all(
        math.isclose(a, b, rel_tol=1e-12, abs_tol=0.0)
        for row_left, row_right in zip(left, right, strict=True)
        for a, b in zip(row_left, row_right, strict=True)
    )


def torch_shape(name, built, n, floor=0.0, step_size=1, gamma=0.1):
    """The shape in torch's words; the floor of CosineAnnealingLR is absolute, hence the closed form for two groups."""
    if name == "step":
        return lr_scheduler.StepLR(built, step_size, gamma=gamma)
    if name == "linear":
        return lr_scheduler.LinearLR(built, start_factor=1.0, end_factor=floor, total_iters=n)
    if name == "cosine":
        return lr_scheduler.LambdaLR(built, lambda v: floor + (1 - floor) * (1 + math.cos(math.pi * v / n)) / 2)
    return lr_scheduler.LambdaLR(built, lambda _: 1.0)


@given(
    name=st.sampled_from(("constant", "step", "cosine", "linear")),
    updates=st.integers(1, 60),
    warmup=st.floats(0, 0.999),
    floor=st.floats(0, 0.999),
    per_epoch=st.integers(1, 9),
)
def test_equals_torch_after_a_linear_warmup(name, updates, warmup, floor, per_epoch):
    config = ScheduleConfig(name=name, warmup=warmup, floor=floor, step_epochs=2, gamma=0.3)
    built, schedule = make_schedule(config, updates, per_epoch)
    w = min(round(warmup * updates), updates - 1)

    reference = optimizer()
    shape = torch_shape(name, reference, updates - w, floor, step_size=2 * per_epoch, gamma=0.3)
    climb = lr_scheduler.LinearLR(reference, start_factor=1 / (w + 1), total_iters=w) if w else None
    full = lr_scheduler.SequentialLR(reference, [climb, shape], [w]) if climb else shape

    assert equal(rates(schedule, built, updates), torch_rates(full, reference, updates))


@pytest.mark.parametrize("updates", [1, 2, 7, 100])
def test_cosine_equals_that_of_torch(updates):
    built, schedule = make_schedule(ScheduleConfig(name="cosine"), updates)
    reference = optimizer()
    scheduler = lr_scheduler.CosineAnnealingLR(reference, T_max=updates)
    assert equal(rates(schedule, built, updates), torch_rates(scheduler, reference, updates))


@given(updates=st.integers(1, 80), warmup=st.one_of(st.just(0.0), st.floats(0.01, 0.99)))
def test_onecycle_equals_torch_in_rate_and_momentum(updates, warmup):
    share = warmup or 0.3
    if share * updates == 1:  # where torch divides by zero
        return
    for kind, arguments in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {})):
        built, schedule = make_schedule(ScheduleConfig(name="onecycle", warmup=warmup), updates, kind=kind, **arguments)
        reference = optimizer(kind, **arguments)
        scheduler = lr_scheduler.OneCycleLR(reference, list(PEAKS), total_steps=updates, pct_start=share)
        for update in range(updates):
            schedule.set(update)
            for actual, expected in zip(built.param_groups, reference.param_groups, strict=True):
                assert actual["lr"] == pytest.approx(expected["lr"], rel=1e-12, abs=0)
                momenta = [group["betas"][0] if "betas" in group else group["momentum"] for group in (actual, expected)]
                assert momenta[0] == pytest.approx(momenta[1], rel=1e-12, abs=0)
            reference.step()
            scheduler.step()


def test_onecycle_changes_only_the_first_beta_and_momentum():
    built, schedule = make_schedule(ScheduleConfig(name="onecycle"), 10, kind=torch.optim.AdamW, betas=(0.9, 0.98))
    schedule.set(0)
    assert built.param_groups[0]["betas"] == (0.95, 0.98)
    built, schedule = make_schedule(ScheduleConfig(name="onecycle"), 10, kind=torch.optim.Adagrad)
    schedule.set(0)
    assert "momentum" not in built.param_groups[0]


def test_onecycle_has_no_division_by_zero_where_torch_has_one():
    _, schedule = make_schedule(ScheduleConfig(name="onecycle", warmup=0.1), 10)
    assert schedule.factor(0) == 1.0
    assert schedule.factor(9) == pytest.approx(4e-6, rel=1e-12)


@given(
    name=st.sampled_from(NAMES),
    updates=st.integers(1, 50),
    warmup=st.floats(0, 0.999),
    floor=st.floats(0, 0.999),
    order=st.randoms(),
)
def test_the_rate_depends_only_on_the_index(name, updates, warmup, floor, order):
    config = ScheduleConfig(name=name, warmup=warmup, floor=floor)
    built, schedule = make_schedule(config, updates, 3)
    straight = rates(schedule, built, updates)
    shuffled = list(range(updates))
    order.shuffle(shuffled)
    for update in shuffled:
        schedule.set(update)
        assert [group["lr"] for group in built.param_groups] == straight[update]
    assert all(0 < rate <= peak for row in straight for rate, peak in zip(row, PEAKS, strict=True))


@given(
    name=st.sampled_from(NAMES), updates=st.integers(1, 50), warmup=st.floats(0, 0.999), beyond=st.integers(0, 10**9)
)
def test_after_the_last_update_the_rate_never_rises(name, updates, warmup, beyond):
    _, schedule = make_schedule(ScheduleConfig(name=name, warmup=warmup, floor=0.25), updates, 5)
    final, later = schedule.factor(updates), schedule.factor(updates + beyond)
    assert final <= schedule.factor(updates - 1)
    if name == "step":
        assert later <= final
    else:
        assert later == final
    if name in ("cosine", "linear"):
        assert final == pytest.approx(0.25, rel=1e-12)


def test_warmup_rises_linearly_to_the_peak():
    _, schedule = make_schedule(ScheduleConfig(name="cosine", warmup=0.4), 10)
    assert [schedule.factor(update) for update in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0], rel=1e-12)
    assert schedule.factor(5) < 1


def test_a_tensor_rate_is_filled_in_place():
    built, schedule = make_schedule(ScheduleConfig(name="linear"), 4)
    held = torch.tensor(0.1, dtype=torch.float64)
    built.param_groups[0]["lr"] = held
    for update in (0, 1, 1, 3, 0):
        schedule.set(update)
        assert built.param_groups[0]["lr"] is held
        assert held.item() == 0.1 * (1 - update / 4)


def test_the_rates_are_restored_after_the_optimizers_state_was_loaded():
    built, schedule = make_schedule(ScheduleConfig(name="constant"), 4)
    schedule.set(0)
    saved = built.state_dict()
    for group in saved["param_groups"]:
        group["lr"] = 7.0
    built.load_state_dict(saved)
    schedule.set(1)
    assert tuple(group["lr"] for group in built.param_groups) == PEAKS


def test_the_state_is_json_ready_and_differences_are_listed():
    _, schedule = make_schedule(ScheduleConfig(name="cosine", warmup=0.1), 100, 10)
    state = json.loads(json.dumps(schedule.state_dict()))
    schedule.load_state_dict(state)
    _, longer = make_schedule(ScheduleConfig(name="cosine", warmup=0.1), 200, 10)
    longer.load_state_dict(state)  # a run may be trained longer than planned
    _, other = make_schedule(ScheduleConfig(name="cosine", warmup=0.2), 100, 10)
    with pytest.raises(CheckpointError, match="warmup"):
        other.load_state_dict(state)


@pytest.mark.parametrize("rate", [0.0, -0.0, math.inf, math.nan])
def test_an_invalid_rate_is_refused(rate):
    built = optimizer()
    built.param_groups[1]["lr"] = rate
    with pytest.raises(InvalidConfig, match="learning rate is"):
        Schedule(built, ScheduleConfig(), updates=1, updates_per_epoch=1)


@pytest.mark.parametrize("name", ["cosine", "linear", "onecycle", "step"])
def test_an_unknown_length_is_refused_if_the_shape_needs_it(name):
    with pytest.raises(InvalidConfig, match=name) as refused:
        make_schedule(ScheduleConfig(name=name), None)
    assert "constant" in refused.value.fix


def test_constant_and_step_need_no_length():
    _, schedule = make_schedule(ScheduleConfig(name="constant"), None)
    assert schedule.factor(10**12) == 1.0
    _, schedule = make_schedule(ScheduleConfig(name="step", step_epochs=2, gamma=0.5), None, 10)
    assert [schedule.factor(update) for update in (0, 19, 20, 40)] == [1, 1, 0.5, 0.25]
    with pytest.raises(InvalidConfig, match=r"warmup = 0\.1"):
        make_schedule(ScheduleConfig(name="constant", warmup=0.1), None)


def test_a_schedule_without_updates_is_refused():
    with pytest.raises(InvalidConfig, match="0 updates"):
        make_schedule(ScheduleConfig(), 0)


def test_a_custom_scheduler_is_stepped_once_per_update():
    built, reference = optimizer(), optimizer()
    adapter = UserSchedule(lr_scheduler.ExponentialLR(built, 0.9))
    expected = torch_rates(lr_scheduler.ExponentialLR(reference, 0.9), reference, 6)
    collected = []
    for update in range(6):
        adapter.set(update)
        collected.append([group["lr"] for group in built.param_groups])
        built.step()
        adapter.after_evaluation(1.0)
        adapter.advance()
    assert collected == expected


def test_a_custom_scheduler_has_its_own_state():
    built = optimizer()
    adapter = UserSchedule(lr_scheduler.StepLR(built, 2))
    built.step()
    adapter.advance()
    fresh = UserSchedule(lr_scheduler.StepLR(optimizer(), 2))
    fresh.load_state_dict(adapter.state_dict())
    assert fresh.state_dict() == adapter.state_dict()
    assert fresh.scheduler.last_epoch == 1


def test_a_plateau_scheduler_steps_on_evaluations_only():
    built = optimizer()
    adapter = UserSchedule(lr_scheduler.ReduceLROnPlateau(built, factor=0.5, patience=1))
    for value in (1.0, 1.0, 1.0):
        adapter.advance()
        adapter.after_evaluation(value)
    assert [group["lr"] for group in built.param_groups] == [peak * 0.5 for peak in PEAKS]


def test_a_skipped_first_update_gives_no_warning():
    built = optimizer()
    parts = [lr_scheduler.LinearLR(built, 0.5, total_iters=2), lr_scheduler.ExponentialLR(built, 0.9)]
    adapter = UserSchedule(lr_scheduler.SequentialLR(built, parts, [1]))
    for update in range(2):  # nothing was finite, so nothing was stepped: torch would warn, which here is an error
        adapter.set(update)
        adapter.advance()
    assert adapter.scheduler.last_epoch == 2


def test_other_objects_are_refused_as_schedulers():
    with pytest.raises(InvalidConfig, match="is a function, not"):
        UserSchedule(lambda update: 0.1)
