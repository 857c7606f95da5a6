"""The lean AdamW is torch's fused AdamW, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from trueloop.training.optimizers import adamw
from trueloop.training.optimizers.adamw import LeanAdamW

SETTINGS = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-6}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make_pair(groups: int = 1):
    models = [network(), network()]
    optimizers = []
    for kind, model in zip((LeanAdamW, lambda ps, **s: torch.optim.AdamW(ps, fused=True, **s)), models, strict=True):
        parameters = list(model.parameters())
        trained = parameters if groups == 1 else [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.1}]
        optimizers.append(kind(trained, **SETTINGS))
    return models, optimizers


def step(models, optimizers, seed: int, missing: int | None = None, divisor=None, skipped=None) -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        if missing is not None:
            list(model.parameters())[missing].grad = None
        optimizer.grad_scale, optimizer.found_inf = divisor, skipped
        optimizer.step()


def assert_equal(models, optimizers) -> None:
    for actual, expected in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(actual, expected)
    states = [optimizer.state_dict() for optimizer in optimizers]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for number, state in states[0]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, states[1]["state"][number][name])


@pytest.mark.parametrize("groups", [1, 2])
def test_plain_steps_and_missing_gradients(groups):
    models, optimizers = make_pair(groups)
    for seed, missing in enumerate([None, None, 1, 1, None, 3, None]):
        step(models, optimizers, seed, missing)
        assert_equal(models, optimizers)


def test_a_parameter_whose_first_gradient_comes_later():
    models, optimizers = make_pair()
    for seed, missing in enumerate([0, 0, None, 0, None]):
        step(models, optimizers, seed, missing)
        assert_equal(models, optimizers)


@pytest.mark.parametrize("skipped", [None, 0.0, 1.0])
def test_divisor_and_skip_are_passed_to_the_kernel(skipped):
    models, optimizers = make_pair()
    for seed in range(3):
        step(models, optimizers, seed, None, torch.tensor(7.0), None if skipped is None else torch.tensor(skipped))
        assert_equal(models, optimizers)


def test_a_loaded_state_is_used():
    models, optimizers = make_pair(2)
    for seed in range(3):
        step(models, optimizers, seed)
    saved = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]
    weights = [copy.deepcopy(model.state_dict()) for model in models]
    step(models, optimizers, 9)
    for model, optimizer, weight, state in zip(models, optimizers, weights, reversed(saved), strict=True):
        model.load_state_dict(weight)
        optimizer.load_state_dict(state)
    for seed in range(3, 6):
        step(models, optimizers, seed)
        assert_equal(models, optimizers)


def test_a_group_added_later_is_trained():
    models, optimizers = make_pair()
    step(models, optimizers, 0)
    for model, optimizer in zip(models, optimizers, strict=True):
        model.append(nn.Linear(3, 2))
        with torch.no_grad():
            for parameter in model[-1].parameters():
                parameter.fill_(0.1)
        optimizer.add_param_group({"params": list(model[-1].parameters())})
    for seed in range(3):
        step(models, optimizers, seed)
        assert_equal(models, optimizers)


def test_a_copy_does_not_step_the_original():
    models, optimizers = make_pair()
    step(models, optimizers, 0)
    twin_model, twin = copy.deepcopy((models[0], optimizers[0]))
    before = [p.clone() for p in models[0].parameters()]
    step([twin_model], [twin], 1)
    assert all(torch.equal(a, b) for a, b in zip(before, models[0].parameters(), strict=True))
    assert not torch.equal(next(twin_model.parameters()), before[0])


def test_hooks_and_closures_work():
    model = network()
    optimizer, steps = LeanAdamW(model.parameters()), []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) > float(optimizer.step(closure).detach())
    assert steps == [1, 1]


def test_supported_parameters():
    one = torch.zeros(2)
    assert LeanAdamW.supports([one, one])
    assert not LeanAdamW.supports([one, one.double()])
    assert not LeanAdamW.supports([one, torch.zeros(2, device="meta")])
    assert not LeanAdamW.supports([torch.zeros(2, dtype=torch.complex64)])


@pytest.mark.skipif(bool(adamw.AMSGRAD), reason="this torch is an older one")
def test_an_older_torch_gets_its_extra_argument(monkeypatch: pytest.MonkeyPatch):
    results: list[object] = []

    def older(self, group, parameters, gradients, amsgrad, *lists):
        results.append(amsgrad)
        return torch.optim.AdamW._init_group(self, group, parameters, gradients, *lists)

    monkeypatch.setattr(adamw, "AMSGRAD", (False,))
    monkeypatch.setattr(LeanAdamW, "_init_group", older, raising=False)
    models, optimizers = make_pair()
    step(models, optimizers, seed=0)
    assert results == [False]
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))
