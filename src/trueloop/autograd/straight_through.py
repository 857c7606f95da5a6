"""Straight-through estimators: functions without a useful derivative, with the backward pass of another function.

The gradient is an estimate by design, so ``gradcheck`` fails. Each docstring states which derivative is used.
"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from trueloop.autograd.precision import to_compute_precision
from trueloop.autograd.stable_softmax import softmax
from trueloop.core.errors import InvalidConfig, InvalidData

BITS: Final = (2, 16)  # smallest and largest number of bits


def round_through(x: Tensor) -> Tensor:
    """Round to the nearest whole number, halves to the even one; the backward pass is that of the identity.

    Args:
        x: tensor of any shape, floating-point.

    Source: Bengio et al., 2013, arXiv:1308.3432.

    Example:
        >>> import torch
        >>> from trueloop import autograd
        >>> x = torch.tensor([0.4, 1.6], requires_grad=True)
        >>> autograd.round_through(x).sum().backward()
        >>> x.grad.tolist()
        [1.0, 1.0]
    """
    to_compute_precision(x, "round_through")
    return _Round.apply(x)


def sign_through(x: Tensor, *, window: float = 1.0) -> Tensor:
    """Return +1 where x >= 0, else -1; the gradient passes unchanged where -window <= x <= window, else it is 0.

    Unlike ``torch.sign``, it returns +1 for 0: a binary weight has two values.

    Args:
        x: tensor of any shape, floating-point.
        window: number above 0; with ``float("inf")`` no gradient becomes 0.

    Raises:
        InvalidConfig: ``window`` is not above 0.

    Source: Hubara et al., 2016, arXiv:1602.02830.
    """
    to_compute_precision(x, "sign_through")
    if not window > 0:
        raise InvalidConfig(f"window is {window}.", why="All gradients would be 0.", fix="Set a number above 0.")
    return _Sign.apply(x, float(window))


def one_hot_through(logits: Tensor, dim: int = -1, *, temperature: float = 1.0) -> Tensor:
    """Return 1 at the largest logit and 0 elsewhere; the backward pass is that of softmax(logits / temperature).

    With Gumbel noise added to the logits, it is the straight-through Gumbel-softmax.

    Args:
        logits: tensor of any shape, floating-point. Of equal maxima, the first counts; if all are -inf, none does.
        dim: dimension of the classes.
        temperature: number above 0; with a lower one, the softmax is closer to the step, and more gradients vanish.

    Raises:
        InvalidConfig: ``temperature`` is not above 0.

    Source: Jang et al., 2017, arXiv:1611.01144.
    """
    if not temperature > 0:
        raise InvalidConfig(f"temperature is {temperature}.", fix="Set a number above 0.")
    soft = softmax(logits / temperature, dim)
    return _Replaced.apply(_one_hot(logits.detach(), dim).to(soft.dtype), soft)


def fake_quantise(
    x: Tensor, scale: Tensor | float, *, bits: int = 8, zero_point: int = 0, signed: bool = True
) -> Tensor:
    """Round to one of 2**bits evenly spaced values, as a quantised model will.

    The gradient of x is that of the identity where x lies within the levels, and 0 where it was clipped. The gradient
    of the scale, if it requires one, is that of learned step sizes: the rounding error within the levels, the first or
    last level outside.

    Args:
        x: tensor of any shape, floating-point.
        scale: distance between two levels, above 0; a number, or a tensor that broadcasts to x, such as [C, 1, 1, 1]
            for one scale per filter.
        bits: number of bits, 2 to 16.
        zero_point: level that represents 0.
        signed: whether levels go from -2**(bits - 1) to 2**(bits - 1) - 1; False = from 0 to 2**bits - 1.

    Raises:
        InvalidConfig: ``bits`` or ``zero_point`` is out of range.
        InvalidData: ``x`` is not real floating-point, or the scale does not broadcast to it.

    Source: Jacob et al., 2018, arXiv:1712.05877; Esser et al., 2020, arXiv:1902.08153.
    """
    to_compute_precision(x, "fake_quantise")
    if not BITS[0] <= bits <= BITS[1]:
        raise InvalidConfig(f"bits is {bits}.", fix=f"Set {BITS[0]} to {BITS[1]}.")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not low <= zero_point <= high:
        raise InvalidConfig(f"zero_point is {zero_point}.", fix=f"Set one of the levels, {low} to {high}.")
    scales = torch.as_tensor(scale, dtype=x.dtype, device=x.device)
    try:
        broadcasts = torch.broadcast_shapes(scales.shape, x.shape) == x.shape
    except RuntimeError:  # raised by torch if the shapes cannot be broadcast
        broadcasts = False
    if not broadcasts:
        raise InvalidData(
            f"scale has the shape {tuple(scales.shape)}, which does not broadcast to that of x, {tuple(x.shape)}.",
            fix="Reshape it; for one scale per filter, to (-1, 1, 1, 1).",
        )
    return _Quantised.apply(x, scales, low - zero_point, high - zero_point)


def _one_hot(logits: Tensor, dim: int) -> Tensor:
    best = logits.argmax(dim, keepdim=True)
    indices = torch.arange(logits.shape[dim], device=logits.device)
    indices = indices.reshape([-1] + [1] * (logits.dim() - 1 - dim % logits.dim()))
    return (indices == best) & (logits.amax(dim, keepdim=True) != -torch.inf)


class _Round(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad_output


class _Sign(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, window: float) -> Tensor:
        return torch.where(x.isnan(), x, torch.where(x >= 0, 1.0, -1.0).to(x.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, window = inputs
        ctx.save_for_backward(x.abs() <= window)  # one byte per element instead of four

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (passes,) = ctx.saved_tensors
        return torch.where(passes, grad_output, 0), None


class _Replaced(Function):
    """Returns its first argument; backward passes the gradient to the second one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, gradient_to: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, grad_output


class _Quantised(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
        return (x / scale).round().clamp(low, high) * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
        x, scale, ctx.low, ctx.high = inputs
        ctx.save_for_backward(x, scale)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, scale = ctx.saved_tensors
        ratio = x / scale
        level = ratio.round()
        inside = (level >= ctx.low) & (level <= ctx.high)
        to_x = torch.where(inside, grad_output, 0) if ctx.needs_input_grad[0] else None
        to_scale = None
        if ctx.needs_input_grad[1]:
            to_scale = grad_output * torch.where(inside, level - ratio, level.clamp(ctx.low, ctx.high))
            to_scale = to_scale.sum_to_size(scale.shape)
        return to_x, to_scale, None, None
