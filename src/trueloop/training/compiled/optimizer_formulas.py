"""The arithmetic of PyTorch's optimizers for one parameter, as pure functions that a compiler can fuse.

Inductor cannot fuse anything with a fused kernel: gradients would be written to memory only to be read again. These
functions return the same numbers up to rounding, and compiled and eager runs can continue each other's checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.training.optimizers.adamw import LeanAdamW

State = Mapping[str, Tensor]
NewValues = tuple[Tensor, dict[str, Tensor]]
"""The new value of the parameter, and of its state."""


class Formula(NamedTuple):
    """One optimizer's arithmetic in two stages: first coefficients per group, then the step of each parameter."""

    settings: Callable[[Mapping[str, Any]], tuple[float, ...]]
    """Function that reads a group's settings before every update; changing a setting does not recompile."""
    coefficients: Callable[[Sequence[Tensor], Tensor | None], Sequence[Tensor]]
    """Function of (settings, number of updates including this one) that returns what `step` needs; all are float64
    tensors with one entry per group."""
    step: Callable[[Tensor, Tensor, State, Sequence[Tensor]], NewValues]
    """Function of (parameter, gradient, state, coefficients) that returns new values, without changes in place."""
    state: tuple[str, ...]
    """Names of the state tensors that `step` reads and returns."""
    counts_steps: bool
    """Whether the state also has an entry "step" with the number of updates."""


def formula_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Formula | None:
    """Return the formula of a parameter group; None for an optimizer or a setting that is not implemented here."""
    make_formula = _FORMULAS.get(type(optimizer))
    if make_formula is None or any(group.get(name) for name in ("maximize", "amsgrad", "centered", "dampening")):
        return None
    return make_formula(group)


def _use_settings(settings: Sequence[Tensor], steps: Tensor | None) -> Sequence[Tensor]:
    return settings


def _adam_settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    beta1, beta2 = group["betas"]
    return (group["lr"], group["weight_decay"], group["eps"], beta1, beta2)


def _adam_coefficients(settings: Sequence[Tensor], steps: Tensor | None) -> Sequence[Tensor]:
    assert steps is not None
    lr, decay, eps, beta1, beta2 = settings
    bias1, bias2 = 1 - beta1**steps, 1 - beta2**steps
    return lr / bias1, lr * decay, decay, eps, bias2.sqrt(), beta1, 1 - beta1, beta2, 1 - beta2


def _adamw(p: Tensor, g: Tensor, state: State, coefficients: Sequence[Tensor]) -> NewValues:
    """Source: Loshchilov & Hutter, 2019, arXiv:1711.05101."""
    _rate, shrink, *_ = coefficients
    return _update_moments(p * (1 - shrink), g, state, coefficients)


def _adam(p: Tensor, g: Tensor, state: State, coefficients: Sequence[Tensor]) -> NewValues:
    """Source: Kingma & Ba, 2015, arXiv:1412.6980."""
    _rate, _shrink, decay, *_ = coefficients
    return _update_moments(p, g + decay * p, state, coefficients)


def _update_moments(p: Tensor, g: Tensor, state: State, coefficients: Sequence[Tensor]) -> NewValues:
    rate, _shrink, _decay, eps, bias2, beta1, gain1, beta2, gain2 = coefficients
    average = state["exp_avg"] * beta1 + g * gain1
    square = state["exp_avg_sq"] * beta2 + g * g * gain2
    return p - rate * (average / (square.sqrt() / bias2 + eps)), {"exp_avg": average, "exp_avg_sq": square}


def _sgd_settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    return (group["lr"], group["weight_decay"], group["momentum"])


def _sgd(p: Tensor, g: Tensor, state: State, coefficients: Sequence[Tensor]) -> NewValues:
    lr, decay, _momentum = coefficients
    return p - lr * (g + decay * p), {}


def _sgd_momentum(p: Tensor, g: Tensor, state: State, coefficients: Sequence[Tensor]) -> NewValues:
    lr, decay, momentum = coefficients
    average = state["momentum_buffer"] * momentum + (g + decay * p)
    return p - lr * average, {"momentum_buffer": average}


def _sgd_nesterov(p: Tensor, g: Tensor, state: State, coefficients: Sequence[Tensor]) -> NewValues:
    lr, decay, momentum = coefficients
    g = g + decay * p
    average = state["momentum_buffer"] * momentum + g
    return p - lr * (g + momentum * average), {"momentum_buffer": average}


def _sgd_formula(group: Mapping[str, Any]) -> Formula:
    if not group["momentum"]:
        return Formula(_sgd_settings, _use_settings, _sgd, (), counts_steps=False)
    step = _sgd_nesterov if group["nesterov"] else _sgd_momentum
    return Formula(_sgd_settings, _use_settings, step, ("momentum_buffer",), counts_steps=False)


def _rmsprop_settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    return (group["lr"], group["weight_decay"], group["momentum"], group["alpha"], 1 - group["alpha"], group["eps"])


def _rmsprop(p: Tensor, g: Tensor, state: State, coefficients: Sequence[Tensor]) -> NewValues:
    """Source: Tieleman & Hinton, 2012, lecture 6.5 of Neural Networks for Machine Learning."""
    lr, decay, momentum, alpha, gain, eps = coefficients
    g = g + decay * p
    square = state["square_avg"] * alpha + g * g * gain
    g = g / (square.sqrt() + eps)
    if "momentum_buffer" not in state:
        return p - lr * g, {"square_avg": square}
    average = state["momentum_buffer"] * momentum + g
    return p - lr * average, {"square_avg": square, "momentum_buffer": average}


def _rmsprop_formula(group: Mapping[str, Any]) -> Formula:
    momentum = ("momentum_buffer",) if group["momentum"] else ()
    return Formula(_rmsprop_settings, _use_settings, _rmsprop, ("square_avg", *momentum), counts_steps=True)


def _adagrad_settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    return (group["lr"], group["weight_decay"], group["lr_decay"], group["eps"])


def _adagrad_coefficients(settings: Sequence[Tensor], steps: Tensor | None) -> Sequence[Tensor]:
    assert steps is not None
    lr, decay, lr_decay, eps = settings
    return lr / (1 + (steps - 1) * lr_decay), decay, eps


def _adagrad(p: Tensor, g: Tensor, state: State, coefficients: Sequence[Tensor]) -> NewValues:
    """Source: Duchi, Hazan & Singer, 2011, JMLR 12."""
    rate, decay, eps = coefficients
    g = g + decay * p
    total = state["sum"] + g * g
    return p - rate * (g / (total.sqrt() + eps)), {"sum": total}


def _adamw_formula(group: Mapping[str, Any]) -> Formula:
    return Formula(_adam_settings, _adam_coefficients, _adamw, ("exp_avg", "exp_avg_sq"), counts_steps=True)


def _adam_formula(group: Mapping[str, Any]) -> Formula:
    step = _adamw if group.get("decoupled_weight_decay") else _adam
    return Formula(_adam_settings, _adam_coefficients, step, ("exp_avg", "exp_avg_sq"), counts_steps=True)


def _adagrad_formula(group: Mapping[str, Any]) -> Formula:
    return Formula(_adagrad_settings, _adagrad_coefficients, _adagrad, ("sum",), counts_steps=True)


_FORMULAS: Final[Mapping[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], Formula]]] = {
    LeanAdamW: _adamw_formula,
    torch.optim.AdamW: _adamw_formula,
    torch.optim.Adam: _adam_formula,
    torch.optim.SGD: _sgd_formula,
    torch.optim.RMSprop: _rmsprop_formula,
    torch.optim.Adagrad: _adagrad_formula,
}
