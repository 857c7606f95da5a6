"""Freezing and thawing under a running optimizer: moments and groups of the rest, order, schedulers, and refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from trueloop.autograd.freezing import freeze, thaw
from trueloop.core.errors import InvalidConfig, InvalidModel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def grouped(model: nn.Module, **more: object) -> torch.optim.Optimizer:
    matrices = [each for each in model.parameters() if each.ndim >= 2 and each.requires_grad]
    rest = [each for each in model.parameters() if each.ndim < 2 and each.requires_grad]
    groups = [
        {"name": "decay", "params": matrices, "weight_decay": 0.1},
        {"name": "no_decay", "params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01, **more)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    optimizer.zero_grad()
    data = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
    model(data).square().mean().backward()
    optimizer.step()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("fused", [False, True])
def test_what_stays_keeps_its_moments_and_its_group(model: nn.Module, fused: bool):
    optimizer = grouped(model, fused=fused)
    step(model, optimizer)
    before = {name: copy.deepcopy(optimizer.state[each]) for name, each in model.head.named_parameters()}
    changed = freeze(model, "body.*", optimizer=optimizer)
    assert changed.parameters == tuple(f"body.{name}" for name, _each in model.body.named_parameters())
    assert changed.removed == 6
    assert [group["params"] for group in optimizer.param_groups] == [[model.head.weight], [model.head.bias]]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    for name, each in model.head.named_parameters():
        torch.testing.assert_close(optimizer.state[each], before[name], rtol=0, atol=0)
    assert len(optimizer.state) == 2


def test_the_frozen_stand_still_though_they_had_momentum_decay_and_a_gradient(model: nn.Module):
    optimizer = grouped(model)
    step(model, optimizer)
    model(torch.randn(2, 3)).sum().backward()
    freeze(model, "body.*", optimizer=optimizer)
    assert all(each.grad is None for each in model.body.parameters())
    before, head = copy.deepcopy(model.body.state_dict()), model.head.weight.clone()
    optimizer.step()
    step(model, optimizer)
    torch.testing.assert_close(model.body.state_dict(), before, rtol=0, atol=0)
    assert not torch.equal(model.head.weight, head)


def test_the_rest_trains_as_under_an_optimizer_that_never_held_the_frozen(model: nn.Module):
    twin = copy.deepcopy(model)
    freeze(twin, "body.*")
    lone = grouped(twin)
    optimizer = grouped(model)
    freeze(model, "body.*", optimizer=optimizer)
    for seed in range(3):
        step(model, optimizer, seed)
        step(twin, lone, seed)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_thawed_ones_come_back_in_the_models_order_with_fresh_moments(model: nn.Module):
    optimizer = grouped(model)
    step(model, optimizer)
    freeze(model, "body.*", optimizer=optimizer)
    changed = thaw(model, "body.2.*", "body.1.*", optimizer=optimizer)
    assert changed.parameters == ("body.1.weight", "body.1.bias", "body.2.weight", "body.2.bias")
    assert changed.added == 4
    fresh = grouped(model)
    assert [[*map(id, a["params"])] for a in optimizer.param_groups] == [
        [*map(id, b["params"])] for b in fresh.param_groups
    ]
    assert model.body[2].weight not in optimizer.state
    step(model, optimizer)
    assert optimizer.state[model.body[2].weight]["step"] == 1
    assert optimizer.state[model.head.weight]["step"] == 2


def test_a_group_that_becomes_empty_stays_for_the_scheduler(model: nn.Module):
    optimizer = grouped(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    freeze(model, "*.bias", "body.1.weight", optimizer=optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [3, 0]
    step(model, optimizer)
    scheduler.step()
    thaw(model, "head.bias", optimizer=optimizer)
    assert optimizer.param_groups[1]["params"] == [model.head.bias]
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.001), "at the rate that the schedule has come to"
    step(model, optimizer)


def test_state_dicts_fit_those_of_an_optimizer_built_anew(model: nn.Module):
    optimizer = grouped(model)
    freeze(model, "body.0.*", optimizer=optimizer)
    thaw(model, "body.0.*", optimizer=optimizer)
    step(model, optimizer)
    twin = copy.deepcopy(model)
    resumed = grouped(twin)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the moments
    step(model, optimizer)
    step(twin, resumed)
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_an_optimizer_made_from_names_keeps_them(model: nn.Module):
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    freeze(model, "body.*", optimizer=optimizer)
    assert optimizer.param_groups[0]["param_names"] == ["head.weight", "head.bias"]
    thaw(model, "body.2.*", optimizer=optimizer)
    assert optimizer.param_groups[0]["param_names"] == ["body.2.weight", "body.2.bias", "head.weight", "head.bias"]
    optimizer.load_state_dict(optimizer.state_dict())


EVERY = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", EVERY)
def test_others_go_on_with_what_they_now_hold(model: nn.Module, name: str):
    optimizer = EVERY[name](model.parameters())
    step(model, optimizer)
    freeze(model, "body.*", optimizer=optimizer)
    step(model, optimizer)
    thaw(model, "body.0.*", optimizer=optimizer)
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}


class Keeping(torch.optim.SGD):
    """Keeps a list of its own until it is told of a change, as an optimizer may that is made to be quick."""

    kept: tuple[nn.Parameter, ...] = ()

    def step(self, closure=None):
        self.kept = self.kept or tuple(self.param_groups[0]["params"])
        with torch.no_grad():
            for parameter in self.kept:
                parameter.sub_(parameter.grad, alpha=0.1)

    def __setstate__(self, state):
        super().__setstate__(state)
        self.kept = ()


def test_an_optimizer_that_keeps_lists_is_told(model: nn.Module):
    optimizer = Keeping(model.parameters())
    step(model, optimizer)
    freeze(model, "body.*", optimizer=optimizer)
    step(model, optimizer)
    assert len(optimizer.kept) == 2
    thaw(model, "body.1.*", optimizer=optimizer)
    step(model, optimizer)
    assert len(optimizer.kept) == 4


def test_a_tied_weight_goes_by_any_of_its_names_and_comes_back_once(model: nn.Module):
    model.body[2].weight = model.body[0].weight = nn.Parameter(torch.randn(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    changed = freeze(model, "body.2.weight", optimizer=optimizer)
    assert (changed.parameters, changed.removed) == (("body.2.weight",), 1)
    assert not model.body[0].weight.requires_grad
    assert thaw(model, "body.*.weight", optimizer=optimizer).added == 1
    assert sum(each is model.body[0].weight for each in optimizer.param_groups[0]["params"]) == 1


def test_again_is_nothing(model: nn.Module):
    optimizer = grouped(model)
    freeze(model, "head.*", optimizer=optimizer)
    again = freeze(model, "head.*", optimizer=optimizer)
    assert (again.parameters, again.removed) == ((), 0)
    thaw(model, "head.*", optimizer=optimizer)
    again = thaw(model, "head.*", optimizer=optimizer)
    assert (again.parameters, again.added) == ((), 0)


def test_a_wrong_pattern_changes_nothing_and_is_named_with_the_nearest(model: nn.Module):
    optimizer = grouped(model)
    with pytest.raises(InvalidConfig, match=r"freeze has the pattern 'bdy\.\*'") as caught:
        freeze(model, "head.*", "bdy.*", optimizer=optimizer)
    assert caught.value.fix == "Did you mean 'body.*'?"
    with pytest.raises(InvalidConfig, match="thaw has the pattern 'head.wieght'") as caught:
        thaw(model, "head.wieght", optimizer=optimizer)
    assert caught.value.fix == "Did you mean 'head.weight'?"
    with pytest.raises(InvalidConfig, match="no pattern"):
        freeze(model)
    assert all(each.requires_grad for each in model.parameters())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 8


def test_groups_that_differ_in_their_rate_are_not_guessed(model: nn.Module):
    freeze(model, "body.0.*")
    rates = [{"params": model.head.parameters(), "lr": 0.1}, {"name": "slow", "params": model.body[2].parameters()}]
    optimizer = torch.optim.SGD(rates, lr=0.001)
    with pytest.raises(InvalidModel, match="2 groups, and the right one is ambiguous") as caught:
        thaw(model, "body.0.*", optimizer=optimizer)
    assert "1 'slow' (lr 0.001, weight decay 0)" in str(caught.value)
    assert not model.body[0].weight.requires_grad
    with pytest.raises(InvalidConfig, match="no group 'slwo'"):
        thaw(model, "body.0.*", optimizer=optimizer, group="slwo")
    assert thaw(model, "body.0.weight", optimizer=optimizer, group="slow").added == 1
    assert thaw(model, "body.0.bias", optimizer=optimizer, group=0).added == 1
    assert [len(group["params"]) for group in optimizer.param_groups] == [3, 3]
    step(model, optimizer)


def test_joint_state_and_whole_numbers_are_refused(model: nn.Module):
    with pytest.raises(InvalidModel, match="LBFGS"):
        freeze(model, "head.*", optimizer=torch.optim.LBFGS(model.parameters()))
    assert model.head.weight.requires_grad
    model.table = nn.Parameter(torch.arange(3), requires_grad=False)
    with pytest.raises(InvalidModel, match="Integer parameters cannot be trained: table"):
        thaw(model, "*")
