"""The model uses its input: different inputs give different outputs.

If the input is overwritten, multiplied by zero or not used for the output, the model learns only the class frequencies,
and seems to have learned something.
"""

# ruff: noqa: N806 - shapes are part of the name: B samples

from typing import cast

import torch
from torch import Tensor

from trueloop.core.formatting import format_count, format_float
from trueloop.verification.batch_tree import batch_size, leaves, replace_tensors, tensors
from trueloop.verification.evidence import Evidence, NotApplicable, broken, holds
from trueloop.verification.influence import PreciseModel, max_difference, perturb, perturb_call, to_best_precision
from trueloop.verification.model_call import ModelCall
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext


def input_used(context: ProofContext) -> Evidence:
    """Change each input of the model in turn, and check whether any output changes."""
    batch = context.first_samples(8)
    model = context.training_copy().model.eval()
    call = context.call(model, batch)
    B = batch_size(call.tree)
    exact = to_best_precision(model, call, context.target.seed)
    changes: dict[str, float] = {}
    for index, (path, leaf) in enumerate(_named_inputs(exact.call)):
        if leaf.dtype is torch.bool or not leaf.dim() or leaf.shape[0] != B:
            continue
        try:
            perturbed = exact.run(perturb_call(exact.call, [index], _perturb_everywhere))
        except NotApplicable:  # all values are equal, such as token types that are all 0
            continue
        pairs = zip(exact.baseline, perturbed, strict=True)
        changes[path] = max((max_difference(a, b, 0.0) for a, b in pairs), default=0.0)
    if not changes:
        raise NotApplicable("The model has no input that could be changed.")
    numbers = {f"moves_{path}": change for path, change in changes.items()}
    unused = [path for path, change in changes.items() if not change]
    if unused:
        return broken(
            f"{format_count(len(unused), 'input')} of {len(changes)} ({', '.join(unused)}) can be changed "
            "without any effect on the outputs.",
            cause=unused[0],
            fix="Trace the input through forward: is it overwritten or multiplied by zero, or is it not returned?",
            numbers=numbers,
        )
    return holds(
        f"Every input changes the outputs ({', '.join(changes)})."
        if len(changes) > 1
        else f"Changing the input changes the outputs by {format_float(max(changes.values()))} of the largest output.",
        notes=_idle_features(exact),
        numbers=numbers,
    )


def _perturb_everywhere(leaf: Tensor) -> Tensor:
    return perturb(leaf, torch.ones(leaf.shape, dtype=torch.bool, device=leaf.device))


def _named_inputs(call: ModelCall) -> list[tuple[str, Tensor]]:
    args = [
        (f"input{path}" if len(call.args) > 1 or "][" in path else "the input", leaf)
        for path, leaf in leaves(call.args)
    ]
    return [*args, *((path.strip("[]'"), leaf) for path, leaf in leaves(dict(call.kwargs)))]


def _idle_features(exact: PreciseModel) -> tuple[str, ...]:
    """Return a note on the features that have no gradient in any sample, if the only float input is a table."""
    floats = [(index, leaf) for index, leaf in enumerate(tensors(exact.call.tree)) if leaf.is_floating_point()]
    if len(floats) != 1 or floats[0][1].dim() != 2:
        return ()
    index, leaf = floats[0]
    differentiable = leaf.detach().requires_grad_()
    call = ModelCall.from_tree(replace_tensors(exact.call.tree, {index: differentiable}))
    outputs = [out for out in tensors(exact.model(*call.args, **call.kwargs)) if out.requires_grad]
    if not outputs:
        return ()
    total = torch.stack([(out * torch.rand_like(out)).sum() for out in outputs]).sum()
    gradient = cast("Tensor | None", torch.autograd.grad(total, differentiable, allow_unused=True)[0])
    if gradient is None:  # the outputs do not depend on this input, or only through operations without a gradient
        return ()
    idle = (gradient == 0).all(0).nonzero().flatten().tolist()
    if not idle:
        return ()
    return (f"{format_count(len(idle), 'feature')} of {leaf.shape[1]} had no gradient in this batch: {idle[:8]}.",)


PROOF = Proof(title="The input is used", group="model", prove=input_used)
