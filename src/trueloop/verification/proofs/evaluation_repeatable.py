"""Evaluation is deterministic: in eval mode a batch always gives the same outputs, and the model stays unchanged.

With ``F.dropout`` without ``training=``, augmentation noise, or statistics that still change in eval mode, validation
losses of different epochs cannot be compared.
"""

import torch

from trueloop.core.formatting import format_count, format_float
from trueloop.verification.divergence import first_divergence, trace_modules
from trueloop.verification.evidence import Evidence, broken, holds
from trueloop.verification.influence import max_difference
from trueloop.verification.model_call import model_outputs
from trueloop.verification.model_snapshot import ModelSnapshot, named_tensors
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext


def evaluation_repeatable(context: ProofContext, *, times: int = 3) -> Evidence:
    """Evaluate one batch several times with different random numbers, and compare bit for bit.

    Args:
        times: number of evaluations.
    """
    batch = context.batch
    model = context.training_copy().model
    call = context.call(model, batch)
    model.eval()
    in_train_mode = [name for name, module in model.named_modules() if module.training]
    snapshot, seed = ModelSnapshot(model), context.target.seed
    first = model_outputs(model, call, seed, reset=False)
    repetitions = [model_outputs(model, call, seed + repetition, reset=False) for repetition in range(1, times)]
    tensors = dict(named_tensors(model))
    changed = [name for name in snapshot.restore() if "." in name or name in tensors]  # not modes
    pairs = ((a, b) for outputs in repetitions for a, b in zip(first, outputs, strict=True))
    largest = max((max_difference(a, b, 0.0) for a, b in pairs), default=0.0)
    if largest:
        traces = [trace_modules(model, call, seed + repetition) for repetition in range(2)]
        where = first_divergence(traces[0], traces[1], lambda a, b: torch.equal(a.nan_to_num(), b.nan_to_num()))
        mode_remark = (
            f" {format_count(len(in_train_mode), 'module')} stayed in train mode after eval(): {in_train_mode[0]}."
            if in_train_mode
            else ""
        )
        return broken(
            f"In {times} evaluations of one batch, the outputs differ by {format_float(largest)} of the largest output."
            f"{f' They first differ {where}.' if where else ''}{mode_remark}",
            cause=where or "the model",
            fix="Use nn.Dropout, or F.dropout(x, p, training=self.training); add noise only in train mode.",
            numbers={"most": largest},
        )
    if changed:
        return broken(
            f"Evaluation changes the model: {', '.join(changed[:3])}.",
            cause=changed[0],
            fix="Update statistics only if self.training is True.",
        )
    return holds(f"In {times} evaluations, one batch gives the same outputs bit for bit.")


PROOF = Proof(title="Evaluation is deterministic", group="model", prove=evaluation_repeatable)
