"""The model can overfit one batch.

A model that cannot learn thirty examples cannot learn a million. Either loss and target do not match, or the input or
the gradient is lost, or the learning rate is wrong by orders of magnitude.

Source: A. Karpathy, A Recipe for Training Neural Networks, 2019.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.formatting import format_count, format_duration, format_float, format_percent
from trueloop.verification.batch_tree import batch_size, map_tensors, select_samples, tensors
from trueloop.verification.evidence import Curve, Evidence, NotApplicable, NotJudged, broken, holds
from trueloop.verification.freeze_mode import disable_dropout
from trueloop.verification.model_call import is_criterion, split_pair
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext

FAST_LR = 1e-2
FEW_SAMPLES = 4
"""Number of samples that any model can overfit."""
STALL_UPDATES = 100
"""Training stops if the loss falls by less than 1 % in this number of updates."""
GUESS_TOLERANCE = 0.15
"""The input seems unused if the loss differs from the loss of a constant guess by less than this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of one training on one batch."""

    updates: int
    """Largest number of updates."""
    share: float
    """Share of the first loss, above its minimum, at which training stops."""
    fast: bool = False
    """True = use Adam with `FAST_LR` instead of the target's optimizer."""
    blind: bool = False
    """True = give the same input to all samples, so that the model cannot use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Losses of one training on one batch."""

    losses: list[float]
    """Loss before the first update and after each update."""
    target: float
    """Loss at which training stops."""
    in_time: bool
    """False if training stopped at the time limit."""

    @property
    def reached_target(self) -> bool:
        """True if the last loss is at most the target."""
        return self.losses[-1] <= self.target

    @property
    def summary(self) -> str:
        """Sentence with the first and last loss and the number of updates."""
        ends = f"from {format_float(self.losses[0])} to {format_float(self.losses[-1])}"
        verb = "fell" if self.losses[-1] <= self.losses[0] else "went"
        return f"The loss on one batch {verb} {ends} in {format_count(len(self.losses) - 1, 'update')}"


def overfits_one_batch(
    context: ProofContext, *, updates: int = 1000, share: float = 0.1, samples: int = 32
) -> Evidence:
    """Train on one batch without dropout until a tenth of its loss is left.

    A small model cannot overfit many samples: if training fails, it is repeated with four samples, then with Adam at a
    learning rate of 1e-2. If the minimum of a custom loss is unknown, the remaining loss is compared with the loss
    of a training in which every sample has the same input.

    Args:
        updates: largest number of updates.
        share: share of the first loss, above its minimum, that may remain.
        samples: number of samples in the batch.
    """
    batch = context.first_samples(samples)
    options = TrainingOptions(updates=updates, share=share)
    result = first = _train(context, batch, options)
    remarks: tuple[str, ...] = ()
    few_samples = _distinct_samples(context.target.loss, batch)
    if not result.reached_target and result.in_time:
        result, setup = _retry_easier(context, few_samples, first, options)
        share_left = (
            format_percent(first.losses[-1] / first.losses[0]) if math.isfinite(first.losses[-1]) else "not a number"
        )
        note = (
            f"On {format_count(batch_size(batch), 'sample')}, {share_left} of the loss is left; this result is {setup}."
        )
        remarks = (note,) if result.reached_target else ()
        if not result.reached_target:
            _check_floor(context, few_samples, result, options)
    curve = Curve(title="Loss on one batch", lines={"loss": result.losses}, level=result.target)
    start, last, update_count = result.losses[0], result.losses[-1], len(result.losses) - 1
    numbers = {"first": start, "last": last, "updates": update_count, "target": result.target}
    if result.reached_target:
        return holds(f"{result.summary}.", numbers=numbers, charts=(curve,), notes=remarks)
    if not result.in_time:
        limit = format_duration(context.target.seconds)
        raise NotJudged(f"{result.summary}, in the time limit of {limit}: pass seconds= or a smaller batch.")
    remark = _constant_guess_remark(context.target.loss, few_samples, last)
    return broken(
        f"{result.summary}: {format_percent(last / start) if math.isfinite(last) else 'not a number'} of it is left, "
        f"but at most {format_percent(share)} is expected.{remark}",
        cause="the model",
        fix="Check that input and target match, that the gradient reaches every layer, and the learning rate.",
        numbers=numbers,
        charts=(curve,),
    )


def _retry_easier(
    context: ProofContext, few_samples: Any, first: TrainingResult, options: TrainingOptions
) -> tuple[TrainingResult, str]:
    """Retry with a few samples and then, unless the loss increased, with a fast optimizer."""
    setup = f"on {format_count(batch_size(few_samples), 'sample')}"
    result = _train(context, few_samples, options)
    worse = not math.isfinite(result.losses[-1]) or result.losses[-1] >= result.losses[0]
    if result.reached_target or worse or not result.in_time:
        return result, setup
    fast = _train(context, few_samples, replace(options, fast=True))
    lower = fast.losses[-1] < result.losses[-1]  # False for NaN
    return (fast, f"{setup}, with Adam at a learning rate of {FAST_LR:g}") if lower else (result, setup)


def _check_floor(context: ProofContext, few_samples: Any, result: TrainingResult, options: TrainingOptions) -> None:
    """Raise `NotApplicable` if the minimum of a custom loss is unknown and the loss depends on the input."""
    loss = context.target.loss
    if context.target.floor or is_criterion(loss) or not result.in_time or not math.isfinite(result.losses[-1]):
        return
    blind = _train(context, few_samples, replace(options, blind=True, fast=True))
    last, blind_loss = result.losses[-1], blind.losses[-1]
    if last < blind_loss - GUESS_TOLERANCE * abs(blind_loss):
        raise NotApplicable(
            f"{result.summary}, and to {format_float(blind_loss)} if every sample has the same input: "
            "the input is used, but the minimum of this loss is unknown. Pass floor=."
        )


def _train(context: ProofContext, batch: Any, options: TrainingOptions) -> TrainingResult:
    training = context.training_copy()
    if options.fast:
        training.use_optimizer(torch.optim.Adam, FAST_LR)
    disable_dropout(training.model)
    floor = context.target.floor or _smoothing_floor(context.target.loss, training.model, batch)
    if options.blind:
        training.model.register_forward_pre_hook(_same_input_hook, with_kwargs=True)
    first = training.measure_loss(batch)
    if first <= floor:
        raise NotApplicable(
            f"The first loss, {format_float(first)}, is not above the floor, {format_float(floor)}: pass floor=."
        )
    target = floor + options.share * (first - floor)
    losses, started, in_time = [first], context.clock(), True
    while len(losses) <= options.updates and target < losses[-1] < math.inf and not _has_stalled(losses):
        in_time = context.clock() - started <= context.target.seconds
        if not in_time:
            break
        training.update([batch])
        losses.append(training.measure_loss(batch))
    return TrainingResult(losses=losses, target=target, in_time=in_time)


def _same_input_hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Give every sample the input of the first sample."""
    rows = batch_size((args, kwargs))

    def repeat_first(leaf: Tensor) -> Tensor:
        return leaf[:1].expand_as(leaf).clone() if leaf.dim() and leaf.shape[0] == rows else leaf

    return map_tensors(args, repeat_first), map_tensors(kwargs, repeat_first)


def _has_stalled(losses: list[float]) -> bool:
    """Return True if the last `STALL_UPDATES` updates reduced the loss by less than 1 %."""
    return len(losses) > 2 * STALL_UPDATES and min(losses[-STALL_UPDATES:]) > 0.99 * min(losses[:-STALL_UPDATES])


def _distinct_samples(loss: Any, batch: Any) -> Any:
    """Return a few samples with different targets: a constant output would overfit samples with equal targets."""
    indices = list(range(min(FEW_SAMPLES, batch_size(batch))))
    target: Any = split_pair(batch)[1] if is_criterion(loss) else None
    if isinstance(target, Tensor) and target.dim() == 1:
        index_of = {value: number for number, value in reversed(list(enumerate(target.tolist())))}
        indices = [*index_of.values(), *(number for number in indices if number not in index_of.values())][:FEW_SAMPLES]
    return select_samples(batch, torch.tensor(sorted(indices), device=tensors(batch)[0].device))


def _smoothing_floor(loss: Any, model: nn.Module, batch: Any) -> float:
    """Return the minimum of cross-entropy with label smoothing: the entropy of the smoothed target."""
    smoothing = float(getattr(loss, "label_smoothing", 0.0))
    if not smoothing or not isinstance(loss, nn.CrossEntropyLoss):
        return 0.0
    with torch.no_grad():
        inputs, _ = split_pair(batch)
        classes = model(inputs).shape[1]
    low, high = smoothing / classes, 1 - smoothing + smoothing / classes
    return -(high * math.log(high) + (classes - 1) * low * math.log(low))


def _constant_guess_remark(loss: Any, batch: Any, last: float) -> str:
    """Return a remark if the remaining loss equals the loss of a guess that ignores the input."""
    if not is_criterion(loss):
        return ""
    target: Any = split_pair(batch)[1]
    if not isinstance(target, Tensor) or not target.numel():
        return ""
    if isinstance(loss, nn.CrossEntropyLoss) and not target.is_floating_point():
        shares = torch.bincount(target[target >= 0].flatten()).double() / target.numel()
        guess = -float((shares[shares > 0] * shares[shares > 0].log()).sum())
    elif isinstance(loss, nn.MSELoss):
        guess = float(target.double().var(unbiased=False))
    else:
        return ""
    if abs(last - guess) > GUESS_TOLERANCE * guess:
        return ""
    return f" A guess that ignores the input has loss {format_float(guess)}: the input seems not to reach the output."


PROOF = Proof(title="Overfits one batch", group="training", prove=overfits_one_batch)
