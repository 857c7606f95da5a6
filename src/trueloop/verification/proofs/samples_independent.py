"""Samples of a batch do not influence each other: output i does not depend on input j.

A reshape that mixes the batch with another dimension, attention over the wrong dimension, or normalisation over the
batch makes samples depend on each other: the loss still falls, but the model cannot process single samples.
"""

# ruff: noqa: N803, N806 - shapes are part of the name: B samples

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from trueloop.core.formatting import first_few, format_count, format_float
from trueloop.verification.batch_tree import batch_size, replace_tensors, tensors
from trueloop.verification.divergence import first_divergence, trace_modules
from trueloop.verification.evidence import Evidence, Grid, broken, holds
from trueloop.verification.freeze_mode import BatchNorm, freeze_mode, layers_in_train_mode
from trueloop.verification.influence import (
    PreciseModel,
    content_tensors,
    per_sample_outputs,
    perturb,
    perturb_call,
    relative_differences,
    to_best_precision,
)
from trueloop.verification.model_call import ModelCall
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext

FIX = (
    "Look for a reshape, view or transpose that mixes the batch with another dimension, for attention or a mean over "
    "dimension 0, and for normalisation without running statistics."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakMatrix:
    """Influence of samples on outputs in one mode."""

    grid: list[list[float]]
    """Change of output i (row) when input j (column) changes, relative to the largest output."""
    mixing_module: str
    """First module that mixes samples; "" = none."""

    @property
    def leaking_pairs(self) -> list[tuple[int, int]]:
        """Pairs (i, j) of different samples for which output i depends on input j."""
        return [(i, j) for i, row in enumerate(self.grid) for j, value in enumerate(row) if value and i != j]


def samples_independent(context: ProofContext, *, samples: int = 6) -> Evidence:
    """Change one sample of a batch at a time, and find outputs of other samples that change.

    Gradients of float inputs are checked too: d output i / d input j must be exactly zero for different samples.

    Args:
        context: context of a target with at least two samples per batch, along the first dimension.
        samples: number of samples to check.
    """
    model = context.training_copy().model
    batch, _ = context.aligned_samples(model, samples, minimum=2)
    normalised = layers_in_train_mode(model, BatchNorm)
    eval_leaks = _measure_leaks(context, model.eval(), batch)
    if eval_leaks.leaking_pairs:
        return _broken(eval_leaks, "in eval mode")
    model = context.training_copy().model
    train_leaks = _measure_leaks(context, model, batch)
    remarks: tuple[str, ...] = ()
    if train_leaks.leaking_pairs and normalised:
        model = context.training_copy().model
        freeze_mode(model, BatchNorm)
        train_leaks = _measure_leaks(context, model, batch)
        names = first_few(normalised)
        remarks = (f"In train mode BatchNorm ({names}) mixes samples through its batch statistics, as intended.",)
    if train_leaks.leaking_pairs:
        return _broken(train_leaks, "in train mode only")
    pairs = len(eval_leaks.grid) * (len(eval_leaks.grid) - 1)
    return holds(
        f"In {format_count(pairs, 'pair')} of samples no output changes with the other sample's input.",
        notes=remarks,
        numbers={"pairs": pairs},
        charts=(_grid(eval_leaks),),
    )


def _broken(leaks: LeakMatrix, mode: str) -> Evidence:
    i, j = leaks.leaking_pairs[0]
    largest = max(leaks.grid[i][j] for i, j in leaks.leaking_pairs)
    location = f" Samples first mix {leaks.mixing_module}." if leaks.mixing_module else ""
    return broken(
        f"Output {i} changes with sample {j} {mode}: {format_count(len(leaks.leaking_pairs), 'pair')} of samples "
        f"leak, by up to {format_float(largest)} of the largest output.{location}",
        cause=leaks.mixing_module or f"output {i}, sample {j}",
        fix=FIX,
        numbers={"leaking_pairs": len(leaks.leaking_pairs), "most": largest},
        charts=(_grid(leaks),),
    )


def _grid(leaks: LeakMatrix) -> Grid:
    return Grid(
        title="Change of each output",
        rows="output of sample",
        columns="input of sample",
        labels=range(len(leaks.grid)),
        values=leaks.grid,
        wrong=leaks.leaking_pairs,
    )


def _measure_leaks(context: ProofContext, model: nn.Module, batch: Any) -> LeakMatrix:
    call = context.call(model, batch)
    B = batch_size(call.tree)
    exact = to_best_precision(model, call, context.target.seed)
    indices = content_tensors(exact.call, lambda leaf: leaf.dim() > 0 and leaf.shape[0] == B)
    rows = per_sample_outputs(exact.baseline, B)
    grid = [[0.0] * B for _ in range(B)]
    for j in range(B):
        perturbed_rows = per_sample_outputs(exact.run(_perturb(exact.call, indices, j, B)), B)
        for original, perturbed in zip(rows, perturbed_rows, strict=True):
            for i, value in enumerate(relative_differences(original, perturbed, 1, exact.tolerance).tolist()):
                grid[i][j] = max(grid[i][j], value)
    _add_gradients(grid, exact, indices)
    leaks = LeakMatrix(grid=grid, mixing_module="")
    if not leaks.leaking_pairs:
        return leaks
    _, j = leaks.leaking_pairs[0]
    other_samples = [i for i in range(B) if i != j]

    def same(a: Tensor, b: Tensor) -> bool:
        if not a.dim() or a.shape[0] != B or a.shape != b.shape:
            return True  # tensors of different layouts cannot be compared
        return not bool(relative_differences(a, b, 1, exact.tolerance)[other_samples].any())

    original = trace_modules(exact.model, exact.call, exact.seed)
    perturbed = trace_modules(exact.model, _perturb(exact.call, indices, j, B), exact.seed)
    return LeakMatrix(grid=grid, mixing_module=first_divergence(original, perturbed, same))


def _perturb(call: ModelCall, indices: list[int], j: int, B: int) -> ModelCall:
    def change(leaf: Tensor) -> Tensor:
        return perturb(leaf, torch.arange(B, device=leaf.device) == j)

    return perturb_call(call, indices, change)


def _add_gradients(grid: list[list[float]], exact: PreciseModel, indices: list[int]) -> None:
    """Add d output i / d input j to the grid if an input is a float tensor and affects the output."""
    leaves = tensors(exact.call.tree)
    floats = {index: leaves[index].detach().requires_grad_() for index in indices if leaves[index].is_floating_point()}
    if not floats:
        return
    call = ModelCall.from_tree(replace_tensors(exact.call.tree, floats))
    torch.manual_seed(exact.seed)
    rows = [
        leaf
        for leaf in tensors(exact.model(*call.args, **call.kwargs))
        if leaf.requires_grad and leaf.dim() and leaf.shape[0] == len(grid)
    ]
    for i in range(len(grid)):
        if not rows:
            return
        weights = [torch.rand_like(leaf[i]) for leaf in rows]  # a plain sum of a softmax has no gradient
        total = torch.stack([(leaf[i] * w).sum() for leaf, w in zip(rows, weights, strict=True)]).sum()
        result = torch.autograd.grad(total, list(floats.values()), retain_graph=True, allow_unused=True)
        gradients = cast("tuple[Tensor | None, ...]", result)
        magnitudes = [g.reshape(len(grid), -1).abs().amax(1) for g in gradients if g is not None]
        if not magnitudes:
            continue
        magnitude = torch.stack(magnitudes).amax(0)
        share = magnitude / (float(magnitude.max()) or 1.0)
        for j, value in enumerate(share.tolist()):
            grid[i][j] = max(grid[i][j], value if value > exact.tolerance else 0.0)


PROOF = Proof(title="Samples of a batch are independent", group="model", prove=samples_independent)
