"""Frozen parameters do not change.

A parameter frozen after its first gradient is still changed by weight decay and momentum.
"""

import torch

from trueloop.core.formatting import format_count, format_float
from trueloop.verification.evidence import Evidence, NotApplicable, broken, holds
from trueloop.verification.freeze_mode import BatchNorm
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext


def frozen_stay(context: ProofContext, *, updates: int = 3) -> Evidence:
    """Make a few updates and compare every frozen parameter bit for bit.

    Args:
        context: context of a target with frozen parameters: those with ``requires_grad=False``.
        updates: number of updates.
    """
    training = context.training_copy()
    frozen = {name: p.detach().clone() for name, p in training.model.named_parameters() if not p.requires_grad}
    if not frozen:
        raise NotApplicable("No parameter is frozen.")
    batches = context.batches(updates)
    for number in range(updates):
        training.update([batches[number % len(batches)]])
    now = dict(training.model.named_parameters())
    moved = {
        name: float((now[name].detach() - before).abs().max())
        for name, before in frozen.items()
        if not torch.equal(now[name].detach(), before)
    }
    drifting = [
        name
        for name, module in training.model.named_modules()
        if isinstance(module, BatchNorm)
        and module.training
        and module.running_mean is not None
        and not any(p.requires_grad for p in module.parameters())
    ]
    remarks = (
        (f"Frozen BatchNorm layers still update their running statistics ({', '.join(drifting[:3])}): call eval().",)
        if drifting
        else ()
    )
    if moved:
        worst = max(moved, key=moved.__getitem__)
        gradient = now[worst].grad is not None
        optimized = any(now[worst] is p for group in training.optimizer.param_groups for p in group["params"])
        reason = " It still has a gradient, so weight decay and momentum act on it." if gradient and optimized else ""
        return broken(
            f"{len(moved)} of {format_count(len(frozen), 'frozen parameter')} moved in "
            f"{format_count(updates, 'update')}; {worst} moved most, by {format_float(moved[worst])}.{reason}",
            cause=worst,
            fix="Set .grad to None when you freeze a parameter, and build the optimizer over the trainable ones.",
            numbers={"moved": len(moved), "frozen": len(frozen), "most": moved[worst]},
            notes=remarks,
        )
    return holds(
        f"{format_count(len(frozen), 'frozen parameter')} stayed unchanged, bit for bit, in "
        f"{format_count(updates, 'update')}.",
        notes=remarks,
        numbers={"frozen": len(frozen)},
    )


PROOF = Proof(title="Frozen parameters stay", group="gradients", prove=frozen_stay)
