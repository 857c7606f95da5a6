"""Every formula equals the step of PyTorch's class, from the same state."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from trueloop.training.compiled.optimizer_formulas import formula_of
from trueloop.training.optimizers.adamw import LeanAdamW

MAKERS = {
    "lean": partial(LeanAdamW, lr=0.1, weight_decay=0.1, betas=(0.8, 0.99)),
    "adamw": partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1, eps=1e-3),
    "adamw without memory": partial(torch.optim.AdamW, lr=0.1, betas=(0.0, 0.0)),
    "adam": partial(torch.optim.Adam, lr=0.1, weight_decay=0.1),
    "sgd": partial(torch.optim.SGD, lr=0.1, weight_decay=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, weight_decay=0.1, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.1, weight_decay=0.1, momentum=0.9, nesterov=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.1, weight_decay=0.1, alpha=0.8),
    "rmsprop with momentum": partial(torch.optim.RMSprop, lr=0.1, momentum=0.9),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, weight_decay=0.1, lr_decay=0.01),
}


def step_by_formula(optimizer, p: torch.Tensor, g: torch.Tensor) -> None:
    """Take one step by the formula, and write it into parameter and state as a compiled update does."""
    group = optimizer.param_groups[0]
    formula, state = formula_of(optimizer, group), optimizer.state[p]
    settings = torch.tensor([formula.settings(group)], dtype=torch.float64).unbind(1)
    steps = torch.stack([state["step"]]).double() + 1 if formula.counts_steps else None
    numbers = [each[0] for each in formula.coefficients(settings, steps)]
    value, after = formula.step(p.detach(), g, state, numbers)
    if formula.counts_steps:
        state["step"] += 1
    p.data.copy_(value)
    for name, new in after.items():
        state[name].copy_(new)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("dtype", "apart"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_the_steps_equal_those_of_torch(name, dtype, apart):
    torch.manual_seed(0)
    actual_parameter = nn.Parameter(torch.randn(7, 5, dtype=dtype))
    its = nn.Parameter(actual_parameter.detach().clone())
    optimizer, reference = MAKERS[name]([actual_parameter]), MAKERS[name]([its])
    gradients = torch.randn(12, 7, 5, dtype=dtype)
    for p, each in ((actual_parameter, optimizer), (its, reference)):
        p.grad = gradients[0]
        each.step()  # the first by torch in both, which makes the state
    for place, gradient in enumerate(gradients[1:]):
        for each in (optimizer, reference):
            each.param_groups[0]["lr"] = 0.1 / (1 + place)
        step_by_formula(optimizer, actual_parameter, gradient)
        its.grad = gradient
        reference.step()
    torch.testing.assert_close(actual_parameter, its, rtol=apart, atol=apart)
    for key, value in reference.state[its].items():
        torch.testing.assert_close(optimizer.state[actual_parameter][key], value, rtol=apart, atol=apart)


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.NAdam, lr=0.1), partial(torch.optim.AdamW, lr=0.1, amsgrad=True),
        partial(torch.optim.SGD, lr=0.1, maximize=True), partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
        partial(torch.optim.RMSprop, lr=0.1, centered=True), type("Own", (torch.optim.SGD,), {}),
    ],
)  # fmt: skip
def test_unsupported_settings_have_no_formula(make):
    optimizer = make([nn.Parameter(torch.zeros(2))])
    assert formula_of(optimizer, copy.copy(optimizer.param_groups[0])) is None
