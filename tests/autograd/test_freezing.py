"""Freezing and thawing during a run: moments and groups of other parameters, order, schedulers, and refusals."""

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


def optimizer_with_groups(model: nn.Module, **more: object) -> torch.optim.Optimizer:
    matrices = [each for each in model.parameters() if each.ndim >= 2 and each.requires_grad]
    others = [each for each in model.parameters() if each.ndim < 2 and each.requires_grad]
    groups = [
        {"name": "decay", "params": matrices, "weight_decay": 0.1},
        {"name": "no_decay", "params": others, "weight_decay": 0.0},
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
def test_other_parameters_keep_their_moments_and_group(model: nn.Module, fused: bool):
    optimizer = optimizer_with_groups(model, fused=fused)
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


def test_frozen_parameters_do_not_change_despite_momentum_and_decay(model: nn.Module):
    optimizer = optimizer_with_groups(model)
    step(model, optimizer)
    model(torch.randn(2, 3)).sum().backward()
    freeze(model, "body.*", optimizer=optimizer)
    assert all(each.grad is None for each in model.body.parameters())
    before, head = copy.deepcopy(model.body.state_dict()), model.head.weight.clone()
    optimizer.step()
    step(model, optimizer)
    torch.testing.assert_close(model.body.state_dict(), before, rtol=0, atol=0)
    assert not torch.equal(model.head.weight, head)


def test_other_parameters_train_as_without_the_frozen_ones(model: nn.Module):
    twin = copy.deepcopy(model)
    freeze(twin, "body.*")
    without_frozen = optimizer_with_groups(twin)
    optimizer = optimizer_with_groups(model)
    freeze(model, "body.*", optimizer=optimizer)
    for seed in range(3):
        step(model, optimizer, seed)
        step(twin, without_frozen, seed)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_thawed_parameters_return_in_the_models_order_with_new_moments(model: nn.Module):
    optimizer = optimizer_with_groups(model)
    step(model, optimizer)
    freeze(model, "body.*", optimizer=optimizer)
    changed = thaw(model, "body.2.*", "body.1.*", optimizer=optimizer)
    assert changed.parameters == ("body.1.weight", "body.1.bias", "body.2.weight", "body.2.bias")
    assert changed.added == 4
    fresh = optimizer_with_groups(model)
    assert [[*map(id, a["params"])] for a in optimizer.param_groups] == [
        [*map(id, b["params"])] for b in fresh.param_groups
    ]
    assert model.body[2].weight not in optimizer.state
    step(model, optimizer)
    assert optimizer.state[model.body[2].weight]["step"] == 1
    assert optimizer.state[model.head.weight]["step"] == 2


def test_an_empty_group_is_kept_for_the_scheduler(model: nn.Module):
    optimizer = optimizer_with_groups(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    freeze(model, "*.bias", "body.1.weight", optimizer=optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [3, 0]
    step(model, optimizer)
    scheduler.step()
    thaw(model, "head.bias", optimizer=optimizer)
    assert optimizer.param_groups[1]["params"] == [model.head.bias]
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.001), "at the rate that the schedule has come to"
    step(model, optimizer)


def test_state_dicts_fit_a_newly_built_optimizer(model: nn.Module):
    optimizer = optimizer_with_groups(model)
    freeze(model, "body.0.*", optimizer=optimizer)
    thaw(model, "body.0.*", optimizer=optimizer)
    step(model, optimizer)
    twin = copy.deepcopy(model)
    resumed = optimizer_with_groups(twin)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the moments
    step(model, optimizer)
    step(twin, resumed)
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_an_optimizer_with_named_parameters_keeps_the_names(model: nn.Module):
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    freeze(model, "body.*", optimizer=optimizer)
    assert optimizer.param_groups[0]["param_names"] == ["head.weight", "head.bias"]
    thaw(model, "body.2.*", optimizer=optimizer)
    assert optimizer.param_groups[0]["param_names"] == ["body.2.weight", "body.2.bias", "head.weight", "head.bias"]
    optimizer.load_state_dict(optimizer.state_dict())


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_continues_after_freezing(model: nn.Module, name: str):
    optimizer = OPTIMIZERS[name](model.parameters())
    step(model, optimizer)
    freeze(model, "body.*", optimizer=optimizer)
    step(model, optimizer)
    thaw(model, "body.0.*", optimizer=optimizer)
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}


class CachesParameters(torch.optim.SGD):
    """An optimizer that caches a list of its parameters until `__setstate__` is called."""

    kept: tuple[nn.Parameter, ...] = ()

    def step(self, closure=None):
        self.kept = self.kept or tuple(self.param_groups[0]["params"])
        with torch.no_grad():
            for parameter in self.kept:
                parameter.sub_(parameter.grad, alpha=0.1)

    def __setstate__(self, state):
        super().__setstate__(state)
        self.kept = ()


def test_an_optimizer_that_caches_its_parameters_is_refreshed(model: nn.Module):
    optimizer = CachesParameters(model.parameters())
    step(model, optimizer)
    freeze(model, "body.*", optimizer=optimizer)
    step(model, optimizer)
    assert len(optimizer.kept) == 2
    thaw(model, "body.1.*", optimizer=optimizer)
    step(model, optimizer)
    assert len(optimizer.kept) == 4


def test_a_tied_weight_matches_by_any_name_and_is_added_once(model: nn.Module):
    model.body[2].weight = model.body[0].weight = nn.Parameter(torch.randn(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    changed = freeze(model, "body.2.weight", optimizer=optimizer)
    assert (changed.parameters, changed.removed) == (("body.2.weight",), 1)
    assert not model.body[0].weight.requires_grad
    assert thaw(model, "body.*.weight", optimizer=optimizer).added == 1
    assert sum(each is model.body[0].weight for each in optimizer.param_groups[0]["params"]) == 1


def test_freezing_or_thawing_again_changes_nothing(model: nn.Module):
    optimizer = optimizer_with_groups(model)
    freeze(model, "head.*", optimizer=optimizer)
    repeated = freeze(model, "head.*", optimizer=optimizer)
    assert (repeated.parameters, repeated.removed) == ((), 0)
    thaw(model, "head.*", optimizer=optimizer)
    repeated = thaw(model, "head.*", optimizer=optimizer)
    assert (repeated.parameters, repeated.added) == ((), 0)


def test_a_wrong_pattern_changes_nothing_and_the_error_has_a_suggestion(model: nn.Module):
    optimizer = optimizer_with_groups(model)
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


def test_an_ambiguous_group_is_refused(model: nn.Module):
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


def test_lbfgs_and_integer_parameters_are_refused(model: nn.Module):
    with pytest.raises(InvalidModel, match="LBFGS"):
        freeze(model, "head.*", optimizer=torch.optim.LBFGS(model.parameters()))
    assert model.head.weight.requires_grad
    model.table = nn.Parameter(torch.arange(3), requires_grad=False)
    with pytest.raises(InvalidModel, match="Integer parameters cannot be trained: table"):
        thaw(model, "*")
