"""Compute cross-entropy over a large vocabulary in chunks of tokens, without storing the logits of all tokens.

With 16,384 tokens and 50,257 words, the logits take 3.1 GiB in float32; torch also stores their log-softmax and a
gradient, each as large. Here, only one chunk's logits exist at a time: its loss is added to the sum and its logits
are freed; backward computes them again. This saves the memory of the logits for one more product with the head.
"""
# ruff: noqa: N803, N806, N815 - shapes are part of the name: N tokens, D features, V words, C tokens of one chunk

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from trueloop.core.errors import InvalidData, InvalidModel
from trueloop.training.objective import Loss

# Number of logits at a time: 64 MiB in float32. With fewer, reading the head's weight dominates: benchmarks/head.py.
CHUNK: Final = 2**24


def chunked_cross_entropy(
    hidden: Tensor,
    head: nn.Linear | nn.Embedding | Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    chunk: int | None = None,
) -> Loss:
    """Return the sum and count of ``F.cross_entropy(head(hidden), target)`` without storing the logits.

    Value and gradient equal torch's up to rounding. Under autocast, the matrix products are computed in its dtype, as
    in a linear layer, and everything else in float32.

    Args:
        hidden: inputs of the head, [..., D].
        head: the layer that computes the logits, an embedding tied to it, or its weight, [V, D].
        target: index of the correct word, [...] like ``hidden`` without D; int64.
        weight: class weights, [V].
        ignore_index: target value to ignore.
        label_smoothing: share of the target that is spread over all words, in [0, 1].
        chunk: number of tokens at a time, at least 1; None = as many as have `CHUNK` logits.

    Returns:
        The objective's term: ``return chunked_cross_entropy(model.features(x), model.head, y)``. It has no ``output``,
        so metrics that need the logits cannot be computed.

    Raises:
        InvalidData: shapes, dtypes or settings are wrong.
        InvalidModel: the gradient is computed with ``create_graph=True``.

    Cost: four matrix products with the head instead of three; memory for `CHUNK` logits and their gradient, and for a
        gradient of the head. Does not wait for the GPU.
    """
    matrix, bias = (head, None) if isinstance(head, Tensor) else (head.weight, getattr(head, "bias", None))
    _check(hidden, matrix, target, weight, label_smoothing)
    if chunk is not None and chunk < 1:
        raise InvalidData(f"chunk is {chunk}.", fix="Set 1 or more, or None to choose automatically.")
    hidden_ND, target_N = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1).long()
    counted_N = target_N != ignore_index  # target_N is int64: as uint8, an ignore_index of -100 would be class 156
    target_N = torch.where(counted_N, target_N, 0)
    sum_dtype = torch.float64 if matrix.dtype == torch.float64 else torch.float32
    weight_N = counted_N.to(sum_dtype) if weight is None else weight.to(sum_dtype)[target_N] * counted_N
    plan = _Plan(
        chunk=max(1, CHUNK // len(matrix)) if chunk is None else chunk, smoothing=label_smoothing,
        matmul_dtype=_choose_matmul_dtype(hidden), sum_dtype=sum_dtype,
    )  # fmt: skip
    total: Tensor = _SumOfLosses.apply(hidden_ND, matrix, bias, target_N, weight_N, counted_N, weight, plan)  # pyright: ignore[reportAssignmentType]
    return Loss(sum=total, count=counted_N.sum() if weight is None else weight_N.sum())


class _Plan(NamedTuple):
    chunk: int
    smoothing: float
    matmul_dtype: torch.dtype
    """Type of the matrix products with the head."""
    sum_dtype: torch.dtype
    """Type of all sums."""

    def chunks(self, tokens: int) -> Iterator[slice]:
        return (slice(low, min(low + self.chunk, tokens)) for low in range(0, tokens, self.chunk))


class _SumOfLosses(Function):
    """Sums the loss over all tokens; backward computes the logits again."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, matrix_VD: Tensor, bias_V: Tensor | None, target_N: Tensor, *others: Any
    ) -> Tensor:
        weight_N, counted_N, weight_V, plan = others
        total = torch.zeros((), dtype=plan.sum_dtype, device=hidden_ND.device)
        logsumexp_N = torch.empty(len(hidden_ND), dtype=plan.sum_dtype, device=hidden_ND.device)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            head = _Head(matrix_VD, bias_V, plan)
            for part in plan.chunks(len(hidden_ND)):
                logits_CV = head(hidden_ND[part])
                logsumexp_N[part] = logsumexp_C = logits_CV.logsumexp(1)
                target_logit_C = logits_CV.gather(1, target_N[part, None])[:, 0]
                total += torch.where(counted_N[part], (logsumexp_C - target_logit_C) * weight_N[part], 0).sum() * (
                    1 - plan.smoothing
                )
                if plan.smoothing:
                    smooth_C = logsumexp_C * _sum_weights(weight_V, matrix_VD, plan) - _sum_logits(logits_CV, weight_V)
                    total += torch.where(counted_N[part], smooth_C, 0).sum() * (plan.smoothing / len(matrix_VD))
        ctx.plan = plan
        ctx.save_for_backward(hidden_ND, matrix_VD, bias_V, target_N, weight_N, counted_N, weight_V, logsumexp_N)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            raise InvalidModel(
                "chunked_cross_entropy cannot be differentiated twice (create_graph=True).",
                why="Its backward pass recomputes the logits and builds no graph for a second derivative.",
                fix="If you need a second derivative, use torch.nn.functional.cross_entropy on the logits.",
            )
        hidden_ND, matrix_VD, bias_V, *_ = ctx.saved_tensors
        required = ctx.needs_input_grad
        gradients = _Gradients(
            hidden_ND=torch.empty_like(hidden_ND) if required[0] else None,
            matrix_VD=torch.zeros_like(matrix_VD, dtype=ctx.plan.sum_dtype) if required[1] else None,
            bias_V=torch.zeros_like(bias_V, dtype=ctx.plan.sum_dtype) if required[2] else None,
        )
        with torch.autocast(hidden_ND.device.type, enabled=False):
            _accumulate(ctx, grad_outputs[0], gradients)
        matrix = None if gradients.matrix_VD is None else gradients.matrix_VD.to(matrix_VD.dtype)
        bias = None if gradients.bias_V is None else gradients.bias_V.to(bias_V.dtype)
        return gradients.hidden_ND, matrix, bias, None, None, None, None, None


class _Gradients(NamedTuple):
    """Gradients of the inputs; None for tensors that do not require one."""

    hidden_ND: Tensor | None
    matrix_VD: Tensor | None
    bias_V: Tensor | None


def _accumulate(ctx: Any, grad_output: Tensor, gradients: _Gradients) -> None:
    """Add the contribution of every chunk to the gradients.

    With p = softmax(z), weights w, smoothing e and W the sum of all weights, the gradient with respect to the logit z_v
    of a token with target t is  p_v ((1 - e) w_t + e W / V) - (1 - e) w_t [v = t] - e w_v / V.
    """
    plan: _Plan = ctx.plan
    hidden_ND, matrix_VD, bias_V, target_N, weight_N, counted_N, weight_V, logsumexp_N = ctx.saved_tensors
    head = _Head(matrix_VD, bias_V, plan)
    word_factor = grad_output * (plan.smoothing / len(matrix_VD))
    p_factor_N = target_factor_N = weight_N * (grad_output * (1 - plan.smoothing))
    if plan.smoothing:
        p_factor_N = target_factor_N + counted_N * (word_factor * _sum_weights(weight_V, matrix_VD, plan))
    for part in plan.chunks(len(hidden_ND)):
        grad_CV = head(hidden_ND[part]).sub_(logsumexp_N[part, None]).exp_().mul_(p_factor_N[part, None])
        grad_CV.scatter_add_(1, target_N[part, None], -target_factor_N[part, None])
        if plan.smoothing:
            word_factor_C1 = (counted_N[part] * word_factor)[:, None]
            grad_CV.sub_(word_factor_C1 if weight_V is None else word_factor_C1 * weight_V)
        if gradients.bias_V is not None:
            gradients.bias_V.add_(grad_CV.sum(0))
        grad_CV = grad_CV.to(plan.matmul_dtype)
        if gradients.hidden_ND is not None:
            gradients.hidden_ND[part] = grad_CV @ head.matrix_VD
        if gradients.matrix_VD is not None:
            _add_product(gradients.matrix_VD, grad_CV.t(), hidden_ND[part].to(plan.matmul_dtype))


class _Head:
    """Maps hidden states to logits like a linear layer under autocast."""

    def __init__(self, matrix_VD: Tensor, bias_V: Tensor | None, plan: _Plan) -> None:
        self.matrix_VD = matrix_VD.to(plan.matmul_dtype)
        self._bias_V = None if bias_V is None else bias_V.to(plan.matmul_dtype)
        self._plan = plan

    def __call__(self, hidden_CD: Tensor) -> Tensor:
        """Return logits [C, V] as a new tensor."""
        return F.linear(hidden_CD.to(self._plan.matmul_dtype), self.matrix_VD, self._bias_V).to(self._plan.sum_dtype)


def _add_product(target: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == target.dtype:
        target.addmm_(left, right)
    else:
        target.add_(left @ right)


def _choose_matmul_dtype(hidden: Tensor) -> torch.dtype:
    device_type = hidden.device.type
    if hidden.dtype != torch.float64 and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return hidden.dtype


def _sum_weights(weight_V: Tensor | None, matrix_VD: Tensor, plan: _Plan) -> Tensor | float:
    return float(len(matrix_VD)) if weight_V is None else weight_V.to(plan.sum_dtype).sum()


def _sum_logits(logits_CV: Tensor, weight_V: Tensor | None) -> Tensor:
    return logits_CV.sum(1) if weight_V is None else logits_CV @ weight_V.to(logits_CV.dtype)


def _check(hidden: Tensor, matrix: Tensor, target: Tensor, weight: Tensor | None, smoothing: float) -> None:
    if matrix.dim() != 2 or hidden.shape[-1] != matrix.shape[1]:
        raise InvalidData(
            f"The hidden states have shape {tuple(hidden.shape)}, but the head's weight has {tuple(matrix.shape)}.",
            fix="Give a weight of shape [words, features] and hidden states of shape [..., features], not logits.",
        )
    if target.shape != hidden.shape[:-1] or target.is_floating_point():
        raise InvalidData(
            f"The target is {str(target.dtype).removeprefix('torch.')} of shape {tuple(target.shape)}, but the hidden "
            f"states have shape {tuple(hidden.shape)}.",
            fix="Give one word index per token: the shape of the hidden states without their last dimension.",
        )
    if weight is not None and weight.shape != matrix.shape[:1]:
        raise InvalidData(
            f"weight has shape {tuple(weight.shape)}, but there are {len(matrix)} words.",
            fix="Give one weight per word.",
        )
    if not 0 <= smoothing <= 1:
        raise InvalidData(f"label_smoothing is {smoothing!r}.", fix="Set a share, in [0, 1].")
