"""Softmax and related functions that are safe for logits of any size and for -inf from masks.

A masked position (-inf) has probability 0 and gradient 0, even if the whole row is masked, where torch returns NaN.
Other non-finite values are not hidden: for NaN and +inf the result is NaN.

Each function is a ``torch.autograd.Function`` whose backward only uses differentiable operations, so that it can be
differentiated again, and torch can derive its rule for ``vmap``.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueloop.autograd.precision import to_compute_precision


def log_sum_exp(logits: Tensor, dim: int = -1, *, keepdim: bool = False) -> Tensor:
    """Return log(sum(exp(logits))) along a dimension; its gradient is the softmax.

    Args:
        logits: tensor of any shape, floating-point; -inf masks a position. Half precision is computed in float32.
        dim: dimension to sum over; not empty.
        keepdim: whether to keep this dimension, with size 1.

    Returns:
        The log-sum-exp; if all logits are masked, -inf with gradient 0.

    Raises:
        InvalidData: ``logits`` is not real floating-point.

    Source: Blanchard, Higham and Higham, 2021, doi:10.1093/imanum/draa038.
    """
    full, dtype = to_compute_precision(logits, "log_sum_exp")
    total = _LogSumExp.apply(full, dim).to(dtype)
    return total if keepdim else total.squeeze(dim)


def softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """Return exp(logits) divided by its sum along a dimension.

    Args:
        logits: tensor of any shape, floating-point; -inf masks a position. Half precision is computed in float32.
        dim: dimension along which the result sums to 1.

    Returns:
        Probabilities in the shape of ``logits``; if all logits are masked, all are 0, as attention needs it.

    Raises:
        InvalidData: ``logits`` is not real floating-point.
    """
    full, dtype = to_compute_precision(logits, "softmax")
    return _Softmax.apply(full, dim).to(dtype)


def log_softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """Return logits minus their log-sum-exp along a dimension.

    Args:
        logits: tensor of any shape, floating-point; -inf masks a position. Half precision is computed in float32.
        dim: dimension along which the exponentials of the result sum to 1.

    Returns:
        Log-probabilities in the shape of ``logits``; -inf with gradient 0 at masked positions.

    Raises:
        InvalidData: ``logits`` is not real floating-point.
    """
    full, dtype = to_compute_precision(logits, "log_softmax")
    return _LogSoftmax.apply(full, dim).to(dtype)


def entropy(logits: Tensor, dim: int = -1) -> Tensor:
    """Return the entropy of the distribution softmax(logits), in nats.

    If a probability is 0, the value or gradient of ``-(p * p.log()).sum()`` is NaN. Here such a class contributes 0.

    Args:
        logits: tensor of any shape, floating-point; -inf masks a position. Half precision is computed in float32.
        dim: dimension of the classes; the result does not have it.

    Returns:
        The entropy, between 0 and the log of the number of classes; 0 if all logits are masked.

    Raises:
        InvalidData: ``logits`` is not real floating-point.

    Example:
        >>> import torch
        >>> from trueloop import autograd
        >>> round(autograd.entropy(torch.tensor([0.0, 0.0, -torch.inf])).item(), 4)  # log 2: the third is masked
        0.6931
    """
    full, dtype = to_compute_precision(logits, "entropy")
    return _Entropy.apply(full, dim).to(dtype).squeeze(dim)


def _subtract_max(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the logits minus their maximum, so that every exponential is at most 1, and the maximum."""
    maximum = x.amax(dim, keepdim=True)
    maximum = torch.where(maximum == -torch.inf, 0, maximum)
    return x - maximum, maximum


class _LogSumExp(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        shifted, maximum = _subtract_max(x, dim)
        return maximum + torch.log(torch.exp(shifted).sum(dim, keepdim=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None, None
        # exp(x - output) would not sum to 1: near 1e4, float32 has only three decimals.
        return grad_output * _Softmax.apply(ctx.saved_tensors[0], ctx.dim), None


class _Softmax(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        exponentials = torch.exp(_subtract_max(x, dim)[0])
        total = exponentials.sum(dim, keepdim=True)
        return exponentials / torch.where(total == 0, 1, total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None, None
        (p,) = ctx.saved_tensors
        return p * (grad_output - (grad_output * p).sum(ctx.dim, keepdim=True)), None


class _LogSoftmax(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        shifted, _maximum = _subtract_max(x, dim)  # without this, 1e4 - (1e4 + log(2)) would lose its digits in float32
        total = torch.exp(shifted).sum(dim, keepdim=True)
        return shifted - torch.log(torch.where(total == 0, 1, total))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None, None
        (log_p,) = ctx.saved_tensors
        # At masked positions, the gradient is NaN if a loss computes 0 * -inf.
        unmasked = torch.where(log_p == -torch.inf, 0, grad_output)
        return unmasked - torch.exp(log_p) * unmasked.sum(ctx.dim, keepdim=True), None


class _Entropy(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        log_p, p = _zero_masked(_LogSoftmax.forward(x, dim))
        return -(p * log_p).sum(dim, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None, None
        x, value = ctx.saved_tensors
        log_p, p = _zero_masked(_LogSoftmax.apply(x, ctx.dim))
        return -grad_output * p * (log_p + value), None


def _zero_masked(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithms with 0 for -inf, and the probabilities; so neither forward nor backward has 0 * -inf."""
    masked = log_p == -torch.inf
    log_p = torch.where(masked, 0, log_p)
    return log_p, torch.where(masked, 0, torch.exp(log_p))
