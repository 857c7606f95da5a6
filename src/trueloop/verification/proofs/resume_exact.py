"""Interrupted and resumed training gives the same result as uninterrupted training.

State that a checkpoint lacks (momentum, a non-persistent buffer, a counter in a plain attribute) is silently reset.
"""

import copy
from typing import Any

import torch
from torch import nn

from trueloop.core.formatting import first_few, format_count, format_float
from trueloop.verification.evidence import Evidence, NotApplicable, NotJudged, broken, holds
from trueloop.verification.model_snapshot import named_tensors
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext, TrainingCopy
from trueloop.verification.rng_state import capture_rng_state, restore_rng_state, seed_all


def resume_exact(context: ProofContext, *, updates: int = 6) -> Evidence:
    """Train twice, once with a save and load in the middle, and compare the models bit for bit.

    ``save`` returns the checkpoint, and ``load`` restores it into a new model and optimizer; by default, the checkpoint
    is the ``state_dict()`` of both. The random state is restored as well.

    Args:
        updates: total number of updates.
    """
    training = context.training_copy()
    if not any(parameter.requires_grad for parameter in training.model.parameters()):
        raise NotApplicable("No parameter is trainable.")
    batches = context.batches(updates)
    half = updates // 2
    uninterrupted = _train_copy(context, batches, updates)
    if _first_difference(uninterrupted, _train_copy(context, batches, updates)):
        raise NotJudged("Training is not repeatable (see same-seed-same-run), so a resume cannot be judged.")
    seed_all(context.target.seed)
    training.train(batches, range(half))
    save, load = context.target.save or _save, context.target.load or _load
    state = copy.deepcopy(save(training.model, training.optimizer))
    rng_state = capture_rng_state()
    resumed = context.training_copy()
    _perturb_weights(resumed.model)
    load(resumed.model, resumed.optimizer, state)
    restore_rng_state(rng_state)
    resumed.train(batches, range(half, updates))
    difference = _first_difference(uninterrupted, resumed)
    interruption = f"After training stops at {half} of {format_count(updates, 'update')} and resumes"
    if difference is None:
        return holds(f"{interruption}, all parameters and buffers are the same bit for bit.")
    name, difference_size = difference
    return broken(
        f"{interruption}, {name} differs by {format_float(difference_size)}.{_missing_state(training, state)}",
        cause=name,
        fix="Save and load the optimizer too; keep counters and averages that forward updates in persistent buffers, "
        "and include all state of an optimizer in its state_dict().",
        numbers={"difference": difference_size},
    )


def _save(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def _load(model: nn.Module, optimizer: Any, state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def _train_copy(context: ProofContext, batches: list[Any], updates: int) -> TrainingCopy:
    training = context.training_copy()
    seed_all(context.target.seed)
    training.train(batches, range(updates))
    return training


def _perturb_weights(model: nn.Module) -> None:
    """Change the weights, as in a new process, so that a weight that is not restored becomes visible."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter) * 0.1)


def _first_difference(expected: TrainingCopy, actual: TrainingCopy) -> tuple[str, float] | None:
    actual_tensors = dict(named_tensors(actual.model))
    for name, tensor in named_tensors(expected.model):
        a, b = tensor.detach(), actual_tensors[name].detach()
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return name, float((a.double() - b.double()).abs().max())
    return None


def _missing_state(training: TrainingCopy, state: Any) -> str:
    """Describe the buffers that the model's ``state_dict()`` omits; "" if it omits none."""
    if not isinstance(state, dict):
        return ""
    saved = training.model.state_dict()
    absent = [name for name, _ in training.model.named_buffers() if name not in saved]
    return f" Its state_dict() omits the non-persistent buffers {first_few(absent)}." if absent else ""


PROOF = Proof(title="Resuming equals no interruption", group="training", prove=resume_exact)
