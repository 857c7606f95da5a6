"""The model can learn one batch by heart.

What cannot learn thirty examples will not learn a million: the loss and its target do not belong together, the input
does not arrive, the gradient does not, or the rate is wrong by orders of magnitude.

Source: A. Karpathy, A Recipe for Training Neural Networks, 2019.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.engines.verify.bench import Bench
from trueloop.engines.verify.calling import is_criterion, pair
from trueloop.engines.verify.evidence import Curve, Evidence, NotApplicable, NotJudged, Verdict
from trueloop.engines.verify.pinned import without_dropout
from trueloop.engines.verify.proof import Proof
from trueloop.ground.words import counted, duration, percent, short

NEAR = 0.15
"""Within so much of what a constant guess costs, the input seems not to arrive."""


def overfits_one_batch(bench: Bench, *, updates: int = 1000, share: float = 0.1, samples: int = 32) -> Evidence:
    """Trains on one batch, without dropout, until a tenth of its loss is left.

    Args:
        bench: of the subject.
        updates: at most.
        share: of the first loss, above the floor, that may be left.
        samples: of the batch that are used.
    """
    work = bench.work()
    without_dropout(work.model)
    batch = bench.few(samples)
    floor = bench.subject.floor or _smoothing_floor(bench.subject.loss, work.model, batch)
    first = work.measured(batch)
    if first <= floor:
        raise NotApplicable(f"The first loss, {short(first)}, is no more than the floor, {short(floor)}: give floor=.")
    target = floor + share * (first - floor)
    seen, started = [first], bench.clock()
    while len(seen) <= updates and seen[-1] > target and math.isfinite(seen[-1]):
        if bench.clock() - started > bench.subject.seconds:
            break
        work.update([batch])
        seen.append(work.measured(batch))
    done = len(seen) - 1
    picture = Curve(title="Loss on one batch", lines={"loss": seen}, level=target)
    numbers = {"first": first, "last": seen[-1], "updates": done, "target": target}
    told = f"The loss on one batch fell from {short(first)} to {short(seen[-1])} in {counted(done, 'update')}"
    if seen[-1] <= target:
        return Evidence(verdict=Verdict.HOLDS, sentence=f"{told}.", numbers=numbers, pictures=(picture,))
    if done < updates and math.isfinite(seen[-1]):
        raise NotJudged(
            f"{told}, in the {duration(bench.subject.seconds)} there are: give seconds= or a smaller batch."
        )
    return Evidence(
        verdict=Verdict.BROKEN,
        sentence=f"{told}: {percent(seen[-1] / first) if math.isfinite(seen[-1]) else 'not a number'} of it is left, "
        f"where {percent(share)} was to be.{_constant(bench.subject.loss, batch, seen[-1])}",
        fault="the model",
        fix="Check that input and target belong together, that the gradient reaches every layer, and the "
        "learning rate.",
        numbers=numbers,
        pictures=(picture,),
    )


def _smoothing_floor(loss: Any, model: nn.Module, batch: Any) -> float:
    """Return what cross-entropy with label smoothing costs at best: the entropy of the smoothed target."""
    smoothing = float(getattr(loss, "label_smoothing", 0.0))
    if not smoothing or not isinstance(loss, nn.CrossEntropyLoss):
        return 0.0
    with torch.no_grad():
        inputs, _ = pair(batch)
        classes = model(inputs).shape[1]
    low, high = smoothing / classes, 1 - smoothing + smoothing / classes
    return -(high * math.log(high) + (classes - 1) * low * math.log(low))


def _constant(loss: Any, batch: Any, last: float) -> str:
    """Say so where the loss that is left is what a guess that ignores the input costs."""
    if not is_criterion(loss):
        return ""
    target: Any = pair(batch)[1]
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
    return f" A guess that ignores the input costs {short(cost)}: the input seems not to reach the output."


PROOF = Proof(title="One batch can be learnt by heart", group="training", prove=overfits_one_batch)
