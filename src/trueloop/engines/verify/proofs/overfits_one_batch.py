"""The model can learn one batch by heart.

What cannot learn thirty examples will not learn a million: the loss and its target do not belong together, the input
does not arrive, the gradient does not, or the rate is wrong by orders of magnitude.

Source: A. Karpathy, A Recipe for Training Neural Networks, 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.engines.verify.bench import Bench
from trueloop.engines.verify.calling import is_criterion, pair
from trueloop.engines.verify.evidence import Curve, Evidence, NotApplicable, NotJudged, Verdict
from trueloop.engines.verify.pinned import without_dropout
from trueloop.engines.verify.proof import Proof
from trueloop.engines.verify.tree import samples_in, taken, tensors
from trueloop.ground.words import counted, duration, percent, short

FEW = 4
"""Samples that any model can learn by heart."""
STILL = 100
"""Updates without a hundredth of progress, after which there will be none."""
NEAR = 0.15
"""Within so much of what a constant guess costs, the input seems not to arrive."""


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
        ends = f"from {short(self.seen[0])} to {short(self.seen[-1])}"
        return f"The loss on one batch fell {ends} in {counted(len(self.seen) - 1, 'update')}"


def overfits_one_batch(bench: Bench, *, updates: int = 1000, share: float = 0.1, samples: int = 32) -> Evidence:
    """Trains on one batch, without dropout, until a tenth of its loss is left.

    A small model cannot learn so many samples by heart: where it does not, it is asked for four of them.

    Args:
        bench: of the subject.
        updates: at most.
        share: of the first loss, above the floor, that may be left.
        samples: of the batch that are used.
    """
    batch = bench.few(samples)
    trained = _train(bench, batch, updates, share)
    remarks: tuple[str, ...] = ()
    if not trained.learnt and trained.in_time and samples_in(batch) > FEW:
        few = _train(bench, _unlike(bench.subject.loss, batch), updates, share)
        if few.learnt:
            left = f"{percent(trained.seen[-1] / trained.seen[0])} is left of the loss on {samples_in(batch)} samples"
            remarks = (f"{left}, which is too much for this model and {updates} updates; these are {FEW} of them.",)
            trained = few
    curve = Curve(title="Loss on one batch", lines={"loss": trained.seen}, level=trained.target)
    first, last, done = trained.seen[0], trained.seen[-1], len(trained.seen) - 1
    numbers = {"first": first, "last": last, "updates": done, "target": trained.target}
    if trained.learnt:
        return Evidence(
            verdict=Verdict.HOLDS, sentence=f"{trained.told}.", numbers=numbers, pictures=(curve,), remarks=remarks
        )
    if not trained.in_time:
        limit = duration(bench.subject.seconds)
        raise NotJudged(f"{trained.told}, in the {limit} there are: give seconds= or a smaller batch.")
    return Evidence(
        verdict=Verdict.BROKEN,
        sentence=f"{trained.told}: {percent(last / first) if math.isfinite(last) else 'not a number'} of it is left, "
        f"where {percent(share)} was to be.{_constant(bench.subject.loss, batch, last)}",
        fault="the model",
        fix="Check that input and target belong together, that the gradient reaches every layer, and the learning "
        "rate.",
        numbers=numbers,
        pictures=(curve,),
    )


def _train(bench: Bench, batch: Any, updates: int, share: float) -> Trained:
    work = bench.work()
    without_dropout(work.model)
    floor = bench.subject.floor or _smoothing_floor(bench.subject.loss, work.model, batch)
    first = work.measured(batch)
    if first <= floor:
        raise NotApplicable(f"The first loss, {short(first)}, is no more than the floor, {short(floor)}: give floor=.")
    target = floor + share * (first - floor)
    seen, started, in_time = [first], bench.clock(), True
    while len(seen) <= updates and seen[-1] > target and math.isfinite(seen[-1]) and not _stuck(seen):
        in_time = bench.clock() - started <= bench.subject.seconds
        if not in_time:
            break
        work.update([batch])
        seen.append(work.measured(batch))
    return Trained(seen=seen, target=target, in_time=in_time)


def _stuck(seen: list[float]) -> bool:
    """True where the last updates brought the loss down by next to nothing."""
    return len(seen) > 2 * STILL and min(seen[-STILL:]) > 0.99 * min(seen[:-STILL])


def _unlike(loss: Any, batch: Any) -> Any:
    """Return a few samples whose targets are not all one, or a constant would do."""
    chosen = list(range(FEW))
    target: Any = pair(batch)[1] if is_criterion(loss) else None
    if isinstance(target, Tensor) and target.dim() == 1:
        firsts = {value: number for number, value in reversed(list(enumerate(target.tolist())))}
        chosen = [*firsts.values(), *(number for number in chosen if number not in firsts.values())][:FEW]
    return taken(batch, torch.tensor(sorted(chosen), device=tensors(batch)[0].device))


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
