"""Frozen parameters do not change.

A parameter frozen after its first gradient is still changed by weight decay and momentum.
"""

import torch

from trueloop.core.formatting import first_few, format_count, format_float
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
    training.train(context.batches(updates), range(updates))
    current = dict(training.model.named_parameters())
    moved = {
        name: float((current[name].detach() - initial).abs().max())
        for name, initial in frozen.items()
        if not torch.equal(current[name].detach(), initial)
    }
    drifting = [
        name
        for name, module in training.model.named_modules()
        if isinstance(module, BatchNorm)
        and module.training
        and module.running_mean is not None
        and not any(p.requires_grad for p in module.parameters())
    ]
    remark = f"Frozen BatchNorm layers still update their running statistics ({first_few(drifting)}): call eval()."
    remarks = (remark,) if drifting else ()
    if moved:
        worst = max(moved, key=moved.__getitem__)
        has_gradient = current[worst].grad is not None
        in_optimizer = any(current[worst] is p for group in training.optimizer.param_groups for p in group["params"])
        is_stepped = has_gradient and in_optimizer
        reason = " It still has a gradient, so weight decay and momentum act on it." if is_stepped else ""
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
