"""The same seed gives the same run bit for bit: the same weights, batches and updates.

Without this property, runs cannot be compared and failures cannot be reproduced.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.formatting import format_count, format_float
from trueloop.verification.batch_tree import clone_batch, leaves
from trueloop.verification.evidence import Evidence, NotApplicable, broken, holds
from trueloop.verification.model_snapshot import named_tensors
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext, TrainingCopy
from trueloop.verification.rng_state import reseed_loaders, seed_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Record of one run."""

    start: dict[str, Tensor]
    """Weights before the first update."""
    batches: list[Any]
    """Batches in the order of their use."""
    states: list[dict[str, Tensor]]
    """Weights after every update."""


def same_seed_same_run(context: ProofContext, *, updates: int = 3) -> Evidence:
    """Create the model, read the loader and train twice from one seed, and report where the runs diverge.

    Args:
        updates: number of updates of each run.
    """
    if not any(parameter.requires_grad for parameter in context.original.parameters()):
        raise NotApplicable("No parameter is trainable.")
    first, second = (_run(context, updates) for _ in range(2))
    if name := _first_difference(first.start, second.start):
        return _broken(f"the initial weights: {name}", name, first.start[name], second.start[name])
    for number, (a, b) in enumerate(zip(first.batches, second.batches, strict=False)):
        for (path, x), (_, y) in zip(leaves(a), leaves(b), strict=False):
            if x.shape != y.shape or not torch.equal(x.nan_to_num(), y.nan_to_num()):
                return _broken(f"batch {number} of the loader{f', at {path}' if path else ''}", f"batch {number}", x, y)
    for number, (a, b) in enumerate(zip(first.states, second.states, strict=True), start=1):
        if name := _first_difference(a, b):
            return _broken(f"update {number}: {name}", name, a[name], b[name])
    return holds(
        f"Two runs of {format_count(updates, 'update')} from seed {context.target.seed} are the same bit for bit.",
        notes=()
        if not isinstance(context.target.model, nn.Module)
        else ("Initialisation was not checked: for that, pass a function that creates the model.",),
    )


def _run(context: ProofContext, updates: int) -> Run:
    target = context.target
    # A new context creates a new model, unless the target's model is a module.
    training = (context if isinstance(target.model, nn.Module) else ProofContext(target)).training_copy()
    start = _copy_state(training)
    seed_all(target.seed)
    reseed_loaders(context.loaders, target.seed)
    batches = _read_batches(context, updates)
    seed_all(target.seed)
    states: list[dict[str, Tensor]] = []
    for number in range(updates):
        training.update([clone_batch(batches[number % len(batches)])])
        states.append(_copy_state(training))
    return Run(start=start, batches=batches, states=states)


def _read_batches(context: ProofContext, limit: int) -> list[Any]:
    loader = context.target.loader
    return (list(context.read_batches(loader, limit)) if loader is not None else []) or context.batches(1)


def _copy_state(training: TrainingCopy) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named_tensors(training.model)}


def _first_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> str:
    return next((name for name in a if not torch.equal(a[name].nan_to_num(), b[name].nan_to_num())), "")


def _broken(where: str, cause: str, a: Tensor, b: Tensor) -> Evidence:
    difference = (
        f", by {format_float(float((a.double() - b.double()).abs().max()))}" if a.shape == b.shape and a.numel() else ""
    )
    return broken(
        f"Two runs from one seed diverge at {where}{difference}.",
        cause=cause,
        fix="Draw every random number from the seeded generators (not os.urandom, time, id() or the order of "
        "a set), and use deterministic kernels: torch.use_deterministic_algorithms(True).",
    )


PROOF = Proof(title="The same seed gives the same run", group="training", prove=same_seed_same_run)
