"""The model can learn one batch by heart.

What cannot learn thirty examples will not learn a million: the loss and its target do not belong together, the input
does not arrive, the gradient does not, or the rate is wrong by orders of magnitude.

Source: A. Karpathy, A Recipe for Training Neural Networks, 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.formatting import format_count, format_duration, format_float, format_percent
from trueloop.verification.batch_tree import map_tensors, batch_size, select_samples, tensors
from trueloop.verification.evidence import Curve, Evidence, NotApplicable, NotJudged, Verdict
from trueloop.verification.freeze_mode import disable_dropout
from trueloop.verification.model_call import is_criterion, split_pair
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext

FAST = 1e-2
FEW = 4
"""Samples that any model can learn by heart."""
STILL = 100
"""Updates without a hundredth of progress, after which there will be none."""
NEAR = 0.15
"""Within so much of what a constant guess costs, the input seems not to arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How to train."""

    updates: int
    share: float
    fast: bool = False
    """By Adam in place of the target's optimizer."""
    blind: bool = False
    """With one input for all samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How far the loss on one batch came down."""

    seen: list[float]
    target: float
    in_time: bool

    @property
    def learnt(self) -> bool:
        """It came down far enough."""
        return self.seen[-1] <= self.target

    @property
    def told(self) -> str:
        """Where from, where to, and how long it took."""
        ends = f"from {format_float(self.seen[0])} to {format_float(self.seen[-1])}"
        went = "fell" if self.seen[-1] <= self.seen[0] else "went"
        return f"The loss on one batch {went} {ends} in {format_count(len(self.seen) - 1, 'update')}"


def overfits_one_batch(context: ProofContext, *, updates: int = 1000, share: float = 0.1, samples: int = 32) -> Evidence:
    """Trains on one batch, without dropout, until a tenth of its loss is left.

    A small model cannot learn so many samples by heart: where it does not, it is asked for four of them; and where the
    optimizer is only slow, by Adam at a rate of 1e-2. A loss of your own may have a floor that is not known here: then
    what is left is compared with what is left where every sample has the same input.

    Args:
        context: of the target.
        updates: at most.
        share: of the first loss, above the floor, that may be left.
        samples: of the batch that are used.
    """
    batch = context.first_samples(samples)
    ask = Asked(updates=updates, share=share)
    trained = first = _train(context, batch, ask)
    remarks: tuple[str, ...] = ()
    few = _unlike(context.target.loss, batch)
    if not trained.learnt and trained.in_time:
        trained, how = _again(context, few, first, ask)
        left = format_percent(first.seen[-1] / first.seen[0]) if math.isfinite(first.seen[-1]) else "not a number"
        told = f"On {format_count(batch_size(batch), 'sample')} {left} of the loss is left; this is {how}."
        remarks = (told,) if trained.learnt else ()
        if not trained.learnt:
            _check_floor(context, few, trained, ask)
    curve = Curve(title="Loss on one batch", lines={"loss": trained.seen}, level=trained.target)
    start, last, done = trained.seen[0], trained.seen[-1], len(trained.seen) - 1
    numbers = {"first": start, "last": last, "updates": done, "target": trained.target}
    if trained.learnt:
        return Evidence(
            verdict=Verdict.HOLDS, message=f"{trained.told}.", numbers=numbers, charts=(curve,), notes=remarks
        )
    if not trained.in_time:
        limit = format_duration(context.target.seconds)
        raise NotJudged(f"{trained.told}, in the {limit} there are: give seconds= or a smaller batch.")
    return Evidence(
        verdict=Verdict.BROKEN,
        message=f"{trained.told}: {format_percent(last / start) if math.isfinite(last) else 'not a number'} of it is left, "
        f"where {format_percent(share)} was to be.{_constant(context.target.loss, few, last)}",
        cause="the model",
        fix="Check that input and target belong together, that the gradient reaches every layer, and the learning "
        "rate.",
        numbers=numbers,
        charts=(curve,),
    )


def _again(context: ProofContext, few: Any, first: Trained, ask: Asked) -> tuple[Trained, str]:
    """Ask for less: a few samples; then by an optimizer that is known to be fast, unless the user's made it worse."""
    how = f"on {format_count(batch_size(few), 'sample')}"
    trained = _train(context, few, ask)
    worse = not math.isfinite(trained.seen[-1]) or trained.seen[-1] >= trained.seen[0]
    if trained.learnt or worse or not trained.in_time:
        return trained, how
    fast = _train(context, few, replace(ask, fast=True))
    lower = fast.seen[-1] < trained.seen[-1]  # never so where it is not a number
    return (fast, f"{how}, by Adam at a rate of {FAST:g}") if lower else (trained, how)


def _check_floor(context: ProofContext, few: Any, trained: Trained, ask: Asked) -> None:
    """Accuse a loss whose floor is not known only where the input makes no difference to what is left of it."""
    loss = context.target.loss
    if context.target.floor or is_criterion(loss) or not trained.in_time or not math.isfinite(trained.seen[-1]):
        return
    blind = _train(context, few, replace(ask, blind=True, fast=True))
    last, without = trained.seen[-1], blind.seen[-1]
    if last < without - NEAR * abs(without):
        raise NotApplicable(
            f"{trained.told}, and to {format_float(without)} where every sample has the same input: the input is used, but "
            "how low this loss can get is not known. Give floor=."
        )


def _train(context: ProofContext, batch: Any, ask: Asked) -> Trained:
    training = context.training_copy()
    if ask.fast:
        groups = [{"params": group["params"]} for group in training.optimizer.param_groups]
        training.optimizer = torch.optim.Adam(groups, lr=FAST)
    disable_dropout(training.model)
    floor = context.target.floor or _smoothing_floor(context.target.loss, training.model, batch)
    if ask.blind:
        training.model.register_forward_pre_hook(_blinded, with_kwargs=True)
    first = training.measure_loss(batch)
    if first <= floor:
        raise NotApplicable(f"The first loss, {format_float(first)}, is no more than the floor, {format_float(floor)}: give floor=.")
    target = floor + ask.share * (first - floor)
    seen, started, in_time = [first], context.clock(), True
    while len(seen) <= ask.updates and seen[-1] > target and math.isfinite(seen[-1]) and not _stuck(seen):
        in_time = context.clock() - started <= context.target.seconds
        if not in_time:
            break
        training.update([batch])
        seen.append(training.measure_loss(batch))
    return Trained(seen=seen, target=target, in_time=in_time)


def _blinded(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Give every sample the input of the first."""
    rows = batch_size((args, kwargs))

    def same(leaf: Tensor) -> Tensor:
        return leaf[:1].expand_as(leaf).clone() if leaf.dim() and leaf.shape[0] == rows else leaf

    return map_tensors(args, same), map_tensors(kwargs, same)


def _stuck(seen: list[float]) -> bool:
    """True where the last updates brought the loss down by next to nothing."""
    return len(seen) > 2 * STILL and min(seen[-STILL:]) > 0.99 * min(seen[:-STILL])


def _unlike(loss: Any, batch: Any) -> Any:
    """Return a few samples whose targets are not all one, or a constant would do."""
    chosen = list(range(min(FEW, batch_size(batch))))
    target: Any = split_pair(batch)[1] if is_criterion(loss) else None
    if isinstance(target, Tensor) and target.dim() == 1:
        firsts = {value: number for number, value in reversed(list(enumerate(target.tolist())))}
        chosen = [*firsts.values(), *(number for number in chosen if number not in firsts.values())][:FEW]
    return select_samples(batch, torch.tensor(sorted(chosen), device=tensors(batch)[0].device))


def _smoothing_floor(loss: Any, model: nn.Module, batch: Any) -> float:
    """Return what cross-entropy with label smoothing costs at best: the entropy of the smoothed target."""
    smoothing = float(getattr(loss, "label_smoothing", 0.0))
    if not smoothing or not isinstance(loss, nn.CrossEntropyLoss):
        return 0.0
    with torch.no_grad():
        inputs, _ = split_pair(batch)
        classes = model(inputs).shape[1]
    low, high = smoothing / classes, 1 - smoothing + smoothing / classes
    return -(high * math.log(high) + (classes - 1) * low * math.log(low))


def _constant(loss: Any, batch: Any, last: float) -> str:
    """Say so where the loss that is left is what a guess that ignores the input costs."""
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
    return f" A guess that ignores the input costs {format_float(cost)}: the input seems not to reach the output."


PROOF = Proof(title="One batch can be learnt by heart", group="training", prove=overfits_one_batch)
