"""What torch's optimizers compute for one parameter, written out as pure functions, so that a compiler sees all of it.

A fused kernel is a closed box to Inductor: gradients would be written to memory only to be read again. These give the
same numbers but for rounding, from the same state, so that a checkpoint of the one continues under the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.engines.train.adamw import LeanAdamW

State = Mapping[str, Tensor]
Stepped = tuple[Tensor, dict[str, Tensor]]
"""The parameter's new value, and that of its state."""


class Formula(NamedTuple):
    """One optimizer's arithmetic."""

    settings: Callable[[Mapping[str, Any]], tuple[float, ...]]
    """A group's numbers, read before every update: they arrive as a tensor, and changing one compiles nothing anew."""
    state: tuple[str, ...]
    """What `step` reads and writes beside the parameter."""
    step: Callable[[Tensor, Tensor, State, Sequence[Tensor]], Stepped]
    """(parameter, gradient, state, settings) -> new values; nothing is changed in place."""


def formula_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Formula | None:
    """Return the formula of one of its groups; None for an optimizer or a setting that is not written out here."""
    known = _FORMULAS.get(type(optimizer))
    if known is None or any(group.get(name) for name in ("maximize", "amsgrad", "centered", "dampening")):
        return None
    return known(group)


def _adam_settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    beta1, beta2 = group["betas"]
    logs = (math.log(beta) if beta else -math.inf for beta in (beta1, beta2))
    return (float(group["lr"]), group["weight_decay"], group["eps"], 1 - beta1, 1 - beta2, *logs)


def _moments(p: Tensor, g: Tensor, state: State, settings: Sequence[Tensor]) -> Stepped:
    """Adam's step, without decay. Source: Kingma & Ba, 2015, arXiv:1412.6980."""
    lr, _decay, eps, new1, new2, log1, log2 = settings
    step = state["step"] + 1
    average = state["exp_avg"] + (g - state["exp_avg"]) * new1
    square = state["exp_avg_sq"] + (g * g - state["exp_avg_sq"]) * new2
    # 1 - beta^step loses four digits in float32; expm1 loses none
    bias1, bias2 = (-torch.expm1(step.to(lr.dtype) * log) for log in (log1, log2))
    moved = p - (lr / bias1) * (average / (square.sqrt() / bias2.sqrt() + eps))
    return moved, {"step": step, "exp_avg": average, "exp_avg_sq": square}


def _adamw(p: Tensor, g: Tensor, state: State, settings: Sequence[Tensor]) -> Stepped:
    """Source: Loshchilov & Hutter, 2019, arXiv:1711.05101."""
    return _moments(p * (1 - settings[0] * settings[1]), g, state, settings)


def _adam(p: Tensor, g: Tensor, state: State, settings: Sequence[Tensor]) -> Stepped:
    return _moments(p, g + settings[1] * p, state, settings)


def _sgd_settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    return (float(group["lr"]), group["weight_decay"], group["momentum"])


def _sgd_plain(p: Tensor, g: Tensor, state: State, settings: Sequence[Tensor]) -> Stepped:
    lr, decay, _momentum = settings
    return p - lr * (g + decay * p), {}


def _sgd_momentum(p: Tensor, g: Tensor, state: State, settings: Sequence[Tensor]) -> Stepped:
    lr, decay, momentum = settings
    average = state["momentum_buffer"] * momentum + (g + decay * p)
    return p - lr * average, {"momentum_buffer": average}


def _sgd_nesterov(p: Tensor, g: Tensor, state: State, settings: Sequence[Tensor]) -> Stepped:
    lr, decay, momentum = settings
    g = g + decay * p
    average = state["momentum_buffer"] * momentum + g
    return p - lr * (g + momentum * average), {"momentum_buffer": average}


def _rmsprop_settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    return (float(group["lr"]), group["weight_decay"], group["momentum"], 1 - group["alpha"], group["eps"])


def _rmsprop(p: Tensor, g: Tensor, state: State, settings: Sequence[Tensor]) -> Stepped:
    """Source: Tieleman & Hinton, 2012, lecture 6.5 of Neural Networks for Machine Learning."""
    lr, decay, momentum, new, eps = settings
    g = g + decay * p
    square = state["square_avg"] + (g * g - state["square_avg"]) * new
    g = g / (square.sqrt() + eps)
    after = {"step": state["step"] + 1, "square_avg": square}
    if "momentum_buffer" not in state:
        return p - lr * g, after
    after["momentum_buffer"] = state["momentum_buffer"] * momentum + g
    return p - lr * after["momentum_buffer"], after


def _adagrad_settings(group: Mapping[str, Any]) -> tuple[float, ...]:
    return (float(group["lr"]), group["weight_decay"], group["lr_decay"], group["eps"])


def _adagrad(p: Tensor, g: Tensor, state: State, settings: Sequence[Tensor]) -> Stepped:
    """Source: Duchi, Hazan & Singer, 2011, JMLR 12."""
    lr, decay, slower, eps = settings
    g = g + decay * p
    total = state["sum"] + g * g
    rate = lr / (1 + state["step"].to(lr.dtype) * slower)
    return p - rate * (g / (total.sqrt() + eps)), {"step": state["step"] + 1, "sum": total}


def _sgd_of(group: Mapping[str, Any]) -> Formula:
    if not group["momentum"]:
        return Formula(_sgd_settings, (), _sgd_plain)
    return Formula(_sgd_settings, ("momentum_buffer",), _sgd_nesterov if group["nesterov"] else _sgd_momentum)


def _rmsprop_of(group: Mapping[str, Any]) -> Formula:
    momentum = ("momentum_buffer",) if group["momentum"] else ()
    return Formula(_rmsprop_settings, ("step", "square_avg", *momentum), _rmsprop)


_ADAM: Final = ("step", "exp_avg", "exp_avg_sq")
_FORMULAS: Final[Mapping[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], Formula]]] = {
    LeanAdamW: lambda group: Formula(_adam_settings, _ADAM, _adamw),
    torch.optim.AdamW: lambda group: Formula(_adam_settings, _ADAM, _adamw),
    torch.optim.Adam: lambda group: Formula(
        _adam_settings, _ADAM, _adamw if group.get("decoupled_weight_decay") else _adam
    ),
    torch.optim.SGD: _sgd_of,
    torch.optim.RMSprop: _rmsprop_of,
    torch.optim.Adagrad: lambda group: Formula(_adagrad_settings, ("step", "sum"), _adagrad),
}
