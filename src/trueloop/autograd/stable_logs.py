"""Elementwise logarithms of probabilities that neither overflow nor lose digits.

Each function is a ``torch.autograd.Function`` whose backward only uses differentiable operations, so that it can be
differentiated again, and torch can derive its rule for ``vmap``.
"""

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from trueloop.autograd.precision import to_compute_precision

LOG_HALF: Final = -math.log(2)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), accurate everywhere; its derivative is the sigmoid.

    ``torch.nn.functional.softplus`` returns x if x > 20; in float64, that is up to 2e-9 too small.

    Args:
        x: tensor of any shape, floating-point; half precision is computed in float32.

    Raises:
        InvalidData: ``x`` is not real floating-point.

    Source: Maechler, 2012, "Accurately computing log(1 - exp(-|a|))".
    """
    full, dtype = to_compute_precision(x, "softplus")
    return _Softplus.apply(full).to(dtype)


def log_sigmoid(x: Tensor) -> Tensor:
    """Return log(1 / (1 + exp(-x))), accurate everywhere; its derivative is the sigmoid of -x.

    Args:
        x: tensor of any shape, floating-point; half precision is computed in float32.

    Raises:
        InvalidData: ``x`` is not real floating-point.
    """
    full, dtype = to_compute_precision(x, "log_sigmoid")
    return -_Softplus.apply(-full).to(dtype)


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) for x <= 0: if x is the logarithm of p, this is the logarithm of 1 - p.

    ``torch.log(1 - x.exp())`` is -inf for x close to 0, and 0 for very negative x.

    Args:
        x: tensor of any shape, floating-point, at most 0; for 0 the result is -inf, above 0 it is NaN. Half precision
            is computed in float32.

    Raises:
        InvalidData: ``x`` is not real floating-point.

    Source: Maechler, 2012, "Accurately computing log(1 - exp(-|a|))": the two branches meet at -log 2.

    Example:
        >>> import torch
        >>> from trueloop import autograd
        >>> tiny = torch.tensor(-1e-10)
        >>> round(autograd.log1mexp(tiny).item(), 3), torch.log(1 - tiny.exp()).item()
        (-23.026, -inf)
    """
    full, dtype = to_compute_precision(x, "log1mexp")
    return _Log1mexp.apply(full).to(dtype)


class _Softplus(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(x)


class _Log1mexp(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.where(x > LOG_HALF, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None
        (x,) = ctx.saved_tensors
        # The second derivative of -1 / expm1(-x), which has the same value, would be inf / inf for very negative x.
        return grad_output * torch.exp(x) / torch.expm1(x)
