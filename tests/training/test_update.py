"""Dividing, clipping and stepping: both classes give the same result as calls of torch."""

from __future__ import annotations

import copy
import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trueloop.core.errors import InvalidModel
from trueloop.training.update import CpuUpdate, DeviceUpdate, make_update

CLIP = 0.1


def model_with_gradients(seed: int = 0, dtype=torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
    model(torch.randn(16, 4, dtype=dtype)).square().sum().backward()
    return model


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def step_with_torch(model: nn.Module, make, divisor: float) -> torch.Tensor:
    model = kept_gradients(model)
    optimizer = make(model.parameters())
    for p in model.parameters():
        p.grad = p.grad / divisor
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return weights(model)


def kept_gradients(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    for p, q in zip(twin.parameters(), model.parameters(), strict=True):
        p.grad = q.grad.clone()
    return twin


MAKERS = {
    "adamw fused": lambda ps: torch.optim.AdamW(ps, lr=0.1, fused=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.1),
    "sgd fused": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, fused=True),
    "sgd foreach": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "adagrad fused": lambda ps: torch.optim.Adagrad(ps, lr=0.1, fused=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.1),
}


def of(kind: str, optimizer, parameters):
    if kind == "device":
        return DeviceUpdate(optimizer, parameters, CLIP)
    return CpuUpdate(optimizer, parameters, CLIP, fused_scaling=bool(optimizer.param_groups[0].get("fused")))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kind", ["host", "device"])
def test_dividing_clipping_and_stepping_equal_those_of_torch(name, kind):
    if kind == "device" and "fused" not in name:
        return  # only a fused kernel can decide on the GPU
    model = kept_gradients(model_with_gradients())
    expected = step_with_torch(model, MAKERS[name], 16.0)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm() / 16
    parameters = list(model.parameters())
    outcome = of(kind, MAKERS[name](parameters), parameters).step(torch.tensor(16))
    assert float(outcome.norm) == pytest.approx(float(norm), rel=1e-6)
    assert float(outcome.skipped) == 0
    torch.testing.assert_close(weights(model), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("name", [name for name in MAKERS if "fused" in name])
def test_nonfinite_gradients_are_not_applied(bad, kind, name):
    model = model_with_gradients()
    parameters = list(model.parameters())
    optimizer = MAKERS[name](parameters)
    update = of(kind, optimizer, parameters)
    update.step(4.0)
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    parameters[1].grad[0] = bad
    assert float(update.step(4.0).skipped) == 1
    assert torch.equal(weights(model), before)
    for number, moments in state["state"].items():
        for key, value in moments.items():
            now = optimizer.state_dict()["state"][number][key]
            assert value is now is None or torch.equal(value, now), (number, key)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("update_class", [CpuUpdate, DeviceUpdate])
def test_without_a_guard_nonfinite_gradients_are_applied_unclipped(bad, clip, update_class):
    model = model_with_gradients()
    parameters = list(model.parameters())
    parameters[1].grad[0] = bad
    expected = kept_gradients(model)
    for p in expected.parameters():
        p.grad /= 4.0
    torch.optim.SGD(expected.parameters(), lr=0.1).step()
    fused_scaling = {"fused_scaling": True} if update_class is CpuUpdate else {}
    update = update_class(
        torch.optim.SGD(parameters, lr=0.1, fused=True), parameters, clip, skip_nonfinite=False, **fused_scaling
    )
    assert float(update.step(torch.tensor(4.0)).skipped) == 0
    torch.testing.assert_close(weights(model), weights(expected), equal_nan=True)
    assert weights(model).isfinite().sum() == len(weights(model)) - 1


@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_window_with_count_zero_is_skipped(kind):
    model = model_with_gradients()
    for p in model.parameters():
        p.grad.zero_()
    parameters = list(model.parameters())
    before = weights(model)
    assert float(of(kind, MAKERS["adamw fused"](parameters), parameters).step(torch.tensor(0)).skipped) == 1
    assert torch.equal(weights(model), before)


def test_gradients_below_the_bound_are_not_clipped():
    model = model_with_gradients()
    expected = kept_gradients(model)
    torch.optim.SGD(expected.parameters(), lr=0.1).step()
    parameters = list(model.parameters())
    CpuUpdate(torch.optim.SGD(parameters, lr=0.1), parameters, None, fused_scaling=False).step(1.0)
    assert torch.equal(weights(model), weights(expected))


def test_float64_gradients_do_not_use_the_float32_divisor():
    model = model_with_gradients(dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    update = make_update(optimizer, 1.0)
    assert isinstance(update, CpuUpdate)
    update.step(3.0)
    assert getattr(optimizer, "grad_scale", None) is None


def test_a_fused_optimizer_receives_the_divisor():
    model = model_with_gradients()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    make_update(optimizer, None).step(3.0)
    assert float(optimizer.grad_scale) == 3.0


def test_lbfgs_is_refused():
    with pytest.raises(InvalidModel, match="LBFGS"):
        make_update(torch.optim.LBFGS(model_with_gradients().parameters()), 1.0)


def test_parameters_without_gradients_are_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(InvalidModel, match="No parameter"):
        make_update(torch.optim.SGD(model.parameters()), 1.0).step(1.0)


class Calls(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_device_update_never_waits_for_the_gpu():
    parameters = list(model_with_gradients().parameters())
    update = DeviceUpdate(MAKERS["adamw fused"](parameters), parameters, CLIP)
    with Calls() as calls:
        update.step(torch.tensor(4.0))
    assert "_local_scalar_dense" not in calls.counts


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("optimizer", ["adamw fused", "sgd fused", "adagrad fused"])
def test_a_fused_update_needs_the_same_number_of_operations_for_many_tensors(kind, optimizer):
    counts = []
    for layers in (1, 30):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
        model(torch.randn(8, 4)).square().sum().backward()
        parameters = list(model.parameters())
        update = of(kind, MAKERS[optimizer](parameters), parameters)
        update.step(torch.tensor(8.0))  # the first update creates the optimizer's state, tensor by tensor
        with Calls() as calls:
            update.step(torch.tensor(8.0))
        counts.append(calls.counts)
        assert calls.counts["_foreach_norm"] == 1
        assert calls.counts[f"_fused_{optimizer.partition(' ')[0]}_"] == 1
    for reading in counts:
        reading.pop("_local_scalar_dense", None)  # item() of norms, which are on the CPU already
    assert counts[0] == counts[1]
