"""Logarithms of probabilities, element by element, that neither overflow nor lose their digits.

Each is a ``torch.autograd.Function`` whose backward is made of differentiable operations, so that it can be
differentiated again, and from which torch derives the rule for ``vmap``.
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

    ``torch.nn.functional.softplus`` gives x itself beyond 20: in float64 that is 2e-9 too little there.

    Args:
        x: any shape, floating point; halves are computed in float32.

    Raises:
        InvalidData: ``x`` is not real floating point.

    Source: Maechler, 2012, "Accurately computing log(1 - exp(-|a|))".
    """
    full, dtype = to_compute_precision(x, "softplus")
    return _Softplus.apply(full).to(dtype)


def log_sigmoid(x: Tensor) -> Tensor:
    """Return log(1 / (1 + exp(-x))), accurate everywhere; its derivative is the sigmoid of -x.

    Args:
        x: any shape, floating point; halves are computed in float32.

    Raises:
        InvalidData: ``x`` is not real floating point.
    """
    full, dtype = to_compute_precision(x, "log_sigmoid")
    return -_Softplus.apply(-full).to(dtype)


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) of x <= 0: the logarithm of a probability's complement, from the probability's logarithm.

    ``torch.log(1 - x.exp())`` is -inf for small negative x and 0 for very negative ones.

    Args:
        x: any shape, floating point, at most 0; 0 gives -inf, and more than 0 NaN, as a logarithm does. Halves are
            computed in float32.

    Raises:
        InvalidData: ``x`` is not real floating point.

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
    def backward(ctx: Any, above: Tensor) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None
        (x,) = ctx.saved_tensors
        return above * torch.sigmoid(x)


class _Log1mexp(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.where(x > LOG_HALF, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None
        (x,) = ctx.saved_tensors
        # exp(x) / expm1(x), not -1 / expm1(-x): the second derivative of that would be inf / inf for very negative x.
        return above * torch.exp(x) / torch.expm1(x)
