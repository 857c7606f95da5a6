"""The model can overfit one batch.

A model that cannot learn thirty examples will not learn a million: loss and target do not match, the input or the
gradient is lost, or the learning rate is wrong by orders of magnitude.

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

FAST = 1e-2
FEW = 4
"""Number of samples that any model can overfit."""
STALL_UPDATES = 100
"""Updates with less than 1 % of progress after which training stops."""
NEAR = 0.15
"""Relative distance from the loss of a constant guess within which the input seems unused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of one training."""

    updates: int
    share: float
    fast: bool = False
    """True = use Adam instead of the target's optimizer."""
    blind: bool = False
    """True = the same input for all samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Losses of one training on one batch."""

    seen: list[float]
    target: float
    in_time: bool

    @property
    def reached_target(self) -> bool:
        """True where the last loss is at most the target."""
        return self.seen[-1] <= self.target

    @property
    def summary(self) -> str:
        """First and last loss, and the number of updates."""
        ends = f"from {format_float(self.seen[0])} to {format_float(self.seen[-1])}"
        went = "fell" if self.seen[-1] <= self.seen[0] else "went"
        return f"The loss on one batch {went} {ends} in {format_count(len(self.seen) - 1, 'update')}"


def overfits_one_batch(
    context: ProofContext, *, updates: int = 1000, share: float = 0.1, samples: int = 32
) -> Evidence:
    """Train on one batch without dropout until a tenth of its loss is left.

    A small model cannot overfit many samples: if it fails, four samples are tried, then Adam at a rate of 1e-2. The
    minimum of a custom loss may be unknown: then the remaining loss is compared with that of a training in which
    every sample has the same input.

    Args:
        updates: largest number of updates.
        share: share of the first loss, above its minimum, that may be left.
        samples: number of samples of the batch.
    """
    batch = context.first_samples(samples)
    ask = TrainingOptions(updates=updates, share=share)
    trained = first = _train(context, batch, ask)
    remarks: tuple[str, ...] = ()
    few = _distinct_samples(context.target.loss, batch)
    if not trained.reached_target and trained.in_time:
        trained, how = _retry_easier(context, few, first, ask)
        left = format_percent(first.seen[-1] / first.seen[0]) if math.isfinite(first.seen[-1]) else "not a number"
        note = f"On {format_count(batch_size(batch), 'sample')} {left} of the loss is left; this is {how}."
        remarks = (note,) if trained.reached_target else ()
        if not trained.reached_target:
            _check_floor(context, few, trained, ask)
    curve = Curve(title="Loss on one batch", lines={"loss": trained.seen}, level=trained.target)
    start, last, done = trained.seen[0], trained.seen[-1], len(trained.seen) - 1
    numbers = {"first": start, "last": last, "updates": done, "target": trained.target}
    if trained.reached_target:
        return holds(f"{trained.summary}.", numbers=numbers, charts=(curve,), notes=remarks)
    if not trained.in_time:
        limit = format_duration(context.target.seconds)
        raise NotJudged(f"{trained.summary}, in the time limit of {limit}: give seconds= or a smaller batch.")
    return broken(
        f"{trained.summary}: {format_percent(last / start) if math.isfinite(last) else 'not a number'} of it is left, "
        f"but at most {format_percent(share)} is expected.{_constant_guess_remark(context.target.loss, few, last)}",
        cause="the model",
        fix="Check that input and target match, that the gradient reaches every layer, and the learning rate.",
        numbers=numbers,
        charts=(curve,),
    )


def _retry_easier(
    context: ProofContext, few: Any, first: TrainingResult, ask: TrainingOptions
) -> tuple[TrainingResult, str]:
    """Retry with a few samples, then with a fast optimizer unless the loss increased."""
    how = f"on {format_count(batch_size(few), 'sample')}"
    trained = _train(context, few, ask)
    worse = not math.isfinite(trained.seen[-1]) or trained.seen[-1] >= trained.seen[0]
    if trained.reached_target or worse or not trained.in_time:
        return trained, how
    fast = _train(context, few, replace(ask, fast=True))
    lower = fast.seen[-1] < trained.seen[-1]  # False for NaN
    return (fast, f"{how}, by Adam at a rate of {FAST:g}") if lower else (trained, how)


def _check_floor(context: ProofContext, few: Any, trained: TrainingResult, ask: TrainingOptions) -> None:
    """Raise where a custom loss with unknown minimum depends on the input."""
    loss = context.target.loss
    if context.target.floor or is_criterion(loss) or not trained.in_time or not math.isfinite(trained.seen[-1]):
        return
    blind = _train(context, few, replace(ask, blind=True, fast=True))
    last, without = trained.seen[-1], blind.seen[-1]
    if last < without - NEAR * abs(without):
        raise NotApplicable(
            f"{trained.summary}, and to {format_float(without)} if every sample has the same input: "
            "the input is used, but the minimum of this loss is unknown. Give floor=."
        )


def _train(context: ProofContext, batch: Any, ask: TrainingOptions) -> TrainingResult:
    training = context.training_copy()
    if ask.fast:
        groups = [{"params": group["params"]} for group in training.optimizer.param_groups]
        training.optimizer = torch.optim.Adam(groups, lr=FAST)
    disable_dropout(training.model)
    floor = context.target.floor or _smoothing_floor(context.target.loss, training.model, batch)
    if ask.blind:
        training.model.register_forward_pre_hook(_same_input_hook, with_kwargs=True)
    first = training.measure_loss(batch)
    if first <= floor:
        raise NotApplicable(
            f"The first loss, {format_float(first)}, is not above the floor, {format_float(floor)}: give floor=."
        )
    target = floor + ask.share * (first - floor)
    seen, started, in_time = [first], context.clock(), True
    while len(seen) <= ask.updates and seen[-1] > target and math.isfinite(seen[-1]) and not _has_stalled(seen):
        in_time = context.clock() - started <= context.target.seconds
        if not in_time:
            break
        training.update([batch])
        seen.append(training.measure_loss(batch))
    return TrainingResult(seen=seen, target=target, in_time=in_time)


def _same_input_hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Replace the input of every sample by that of the first."""
    rows = batch_size((args, kwargs))

    def same(leaf: Tensor) -> Tensor:
        return leaf[:1].expand_as(leaf).clone() if leaf.dim() and leaf.shape[0] == rows else leaf

    return map_tensors(args, same), map_tensors(kwargs, same)


def _has_stalled(seen: list[float]) -> bool:
    """Return True where the last updates hardly reduced the loss."""
    return len(seen) > 2 * STALL_UPDATES and min(seen[-STALL_UPDATES:]) > 0.99 * min(seen[:-STALL_UPDATES])


def _distinct_samples(loss: Any, batch: Any) -> Any:
    """Return a few samples with different targets; for equal ones a constant would suffice."""
    chosen = list(range(min(FEW, batch_size(batch))))
    target: Any = split_pair(batch)[1] if is_criterion(loss) else None
    if isinstance(target, Tensor) and target.dim() == 1:
        firsts = {value: number for number, value in reversed(list(enumerate(target.tolist())))}
        chosen = [*firsts.values(), *(number for number in chosen if number not in firsts.values())][:FEW]
    return select_samples(batch, torch.tensor(sorted(chosen), device=tensors(batch)[0].device))


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
    """Return a remark if the remaining loss equals that of a guess that ignores the input."""
    if not is_criterion(loss):
        return ""
    target: Any = split_pair(batch)[1]
    if not isinstance(target, Tensor) or not target.numel():
        return ""
    if isinstance(loss, nn.CrossEntropyLoss) and not target.is_floating_point():
        shares = torch.bincount(target[target >= 0].flatten()).double() / target.numel()
        cost = -float((shares[shares > 0] * shares[shares > 0].log()).sum())
    elif isinstance(loss, nn.MSELoss):
        cost = float(target.double().var(unbiased=False))
    else:
        return ""
    if abs(last - cost) > NEAR * cost:
        return ""
    return f" A guess that ignores the input costs {format_float(cost)}: the input does not seem to reach the output."


PROOF = Proof(title="Overfits one batch", group="training", prove=overfits_one_batch)
