"""Softmax and what belongs to it, safe at any size of logits and where a mask has put -inf.

A masked position (-inf) has probability 0 and gradient 0; so has every position of a row that is masked wholly, where
torch's own answer is NaN. Nothing else is hidden: NaN and +inf go through as NaN.

Each is a ``torch.autograd.Function`` whose backward is made of differentiable operations, so that it can be
differentiated again, and from which torch derives the rule for ``vmap``.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueloop.autograd.precision import to_compute_precision


def log_sum_exp(logits: Tensor, dim: int = -1, *, keepdim: bool = False) -> Tensor:
    """Return log(sum(exp(logits))) along a dimension; its gradient is the softmax.

    Args:
        logits: any shape, floating point; -inf masks. Halves are computed in float32.
        dim: the dimension summed over; not empty.
        keepdim: keep it, with size 1.

    Returns:
        -inf where every logit is masked, with gradient 0.

    Raises:
        InvalidData: ``logits`` is not real floating point.

    Source: Blanchard, Higham and Higham, 2021, doi:10.1093/imanum/draa038.
    """
    full, dtype = to_compute_precision(logits, "log_sum_exp")
    total = _LogSumExp.apply(full, dim).to(dtype)
    return total if keepdim else total.squeeze(dim)


def softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """Return exp(logits) divided by its sum along a dimension.

    Args:
        logits: any shape, floating point; -inf masks. Halves are computed in float32.
        dim: the dimension that sums to 1.

    Returns:
        Like ``logits``; all 0 where every logit is masked, as attention over nothing wants it.

    Raises:
        InvalidData: ``logits`` is not real floating point.
    """
    full, dtype = to_compute_precision(logits, "softmax")
    return _Softmax.apply(full, dim).to(dtype)


def log_softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """Return logits less their log-sum-exp along a dimension.

    Args:
        logits: any shape, floating point; -inf masks. Halves are computed in float32.
        dim: the dimension whose exponentials sum to 1.

    Returns:
        Like ``logits``; -inf where masked, with gradient 0.

    Raises:
        InvalidData: ``logits`` is not real floating point.
    """
    full, dtype = to_compute_precision(logits, "log_softmax")
    return _LogSoftmax.apply(full, dim).to(dtype)


def entropy(logits: Tensor, dim: int = -1) -> Tensor:
    """Return the entropy of the distribution that logits stand for, in nats.

    ``-(p * p.log()).sum()`` is NaN as soon as one probability is 0, in value or in gradient. Here it contributes 0.

    Args:
        logits: any shape, floating point; -inf masks. Halves are computed in float32.
        dim: the dimension of the classes; it is left out of the result.

    Returns:
        Between 0 and the logarithm of the number of classes; 0 where every logit is masked.

    Raises:
        InvalidData: ``logits`` is not real floating point.

    Example:
        >>> import torch
        >>> from trueloop import autograd
        >>> round(autograd.entropy(torch.tensor([0.0, 0.0, -torch.inf])).item(), 4)  # two classes are left: log 2
        0.6931
    """
    full, dtype = to_compute_precision(logits, "entropy")
    return _Entropy.apply(full, dim).to(dtype).squeeze(dim)


def _moved(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return logits with their largest taken off, and that: every exponential is then at most 1."""
    top = x.amax(dim, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    return x - top, top


class _LogSumExp(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        moved, top = _moved(x, dim)
        return top + torch.log(torch.exp(moved).sum(dim, keepdim=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None, None
        # Not exp(x - output): near 1e4 float32 keeps three decimals of it, and the gradients would not sum to 1.
        return above * _Softmax.apply(ctx.saved_tensors[0], ctx.dim), None


class _Softmax(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        parts = torch.exp(_moved(x, dim)[0])
        total = parts.sum(dim, keepdim=True)
        return parts / torch.where(total == 0, 1, total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None, None
        (p,) = ctx.saved_tensors
        return p * (above - (above * p).sum(ctx.dim, keepdim=True)), None


class _LogSoftmax(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        moved, _top = _moved(x, dim)  # first: 1e4 - (1e4 + log(2)) has lost its digits in float32
        total = torch.exp(moved).sum(dim, keepdim=True)
        return moved - torch.log(torch.where(total == 0, 1, total))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None, None
        (log_p,) = ctx.saved_tensors
        moves = torch.where(log_p == -torch.inf, 0, above)  # also where a loss has made 0 times -inf of it
        return moves - torch.exp(log_p) * moves.sum(ctx.dim, keepdim=True), None


class _Entropy(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        log_p, p = _known(_LogSoftmax.forward(x, dim))
        return -(p * log_p).sum(dim, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return None, None
        x, value = ctx.saved_tensors
        log_p, p = _known(_LogSoftmax.apply(x, ctx.dim))
        return -above * p * (log_p + value), None


def _known(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithms with 0 for -inf, and the probabilities: 0 * -inf is met neither forth nor back."""
    masked = log_p == -torch.inf
    log_p = torch.where(masked, 0, log_p)
    return log_p, torch.where(masked, 0, torch.exp(log_p))
