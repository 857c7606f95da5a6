"""A causal model does not see the future: output t depends only on positions up to t.

With a mask that is missing, transposed or one position too wide, the training loss is near zero, but the model cannot
generate: it has learned to copy the next token, which is unavailable at inference.
"""

# ruff: noqa: N803, N806 - shapes are part of the name: B samples, T positions

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.formatting import first_few, format_count, format_float
from trueloop.verification.batch_tree import batch_size, describe_batch, tensors
from trueloop.verification.divergence import first_divergence, trace_modules
from trueloop.verification.evidence import Evidence, Grid, NotApplicable, broken, holds
from trueloop.verification.freeze_mode import BatchNorm, freeze_mode, layers_in_train_mode
from trueloop.verification.influence import (
    PreciseModel,
    content_tensors,
    perturb,
    perturb_call,
    relative_differences,
    to_best_precision,
)
from trueloop.verification.model_call import ModelCall
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext

IGNORED = -100  # the default ignore_index of nn.CrossEntropyLoss
MIN_SHIFTED_SHARE = 0.9  # least share of targets that equal the next input; at padding, targets may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """Influence of input positions on output positions."""

    positions: list[int]
    """Positions that were changed and compared."""
    grid: list[list[float]]
    """Relative change of the output at a position (row) when the input at a position (column) changes."""
    origin: str = ""
    """First module that uses a later position; "" if none is known."""

    @property
    def leaks(self) -> list[tuple[int, int]]:
        """Rows and columns of ``grid`` at which an output depends on a later position."""
        return [(t, s) for t, row in enumerate(self.grid) for s, value in enumerate(row) if value and s > t]


def future_unseen(context: ProofContext, *, positions: int = 12) -> Evidence:
    """Change the input at one position at a time, and find outputs at earlier positions that change.

    Args:
        context: context of a target with ``causal=True``, or whose targets are its inputs shifted by one.
        positions: number of positions to change, spread over the sequence.
    """
    model = context.training_copy().model
    batch, _ = context.aligned_samples(model, 3)
    _check_causal(context, model, batch)
    influence = _measure_influence(context, context.training_copy().model.eval(), batch, positions)
    remarks: tuple[str, ...] = ()
    mode = "in eval mode"
    if not influence.leaks:
        model = context.training_copy().model
        normalised = layers_in_train_mode(model, BatchNorm)
        freeze_mode(model, BatchNorm)
        in_train_mode, mode = _measure_influence(context, model, batch, positions), "in train mode only"
        influence = in_train_mode if in_train_mode.leaks else influence
        if normalised:
            names = first_few(normalised)
            remarks = (f"In train mode BatchNorm ({names}) also uses later positions; it was in eval mode here.",)
    picture = Grid(
        title="Influence of positions on outputs",
        rows="output at position",
        columns="input at position",
        labels=influence.positions,
        values=influence.grid,
        wrong=influence.leaks,
    )
    if not influence.leaks:
        return holds(
            f"Changing any of {format_count(len(influence.positions), 'position')} changes no earlier output.",
            notes=remarks,
            charts=(picture,),
        )
    t, s = influence.leaks[0]
    location = f" It first appears {influence.origin}." if influence.origin else ""
    largest = max(influence.grid[t][s] for t, s in influence.leaks)
    position, later_position = influence.positions[t], influence.positions[s]
    return broken(
        f"The output at position {position} changes with the input at position {later_position}, {mode}, by up to "
        f"{format_float(largest)} of the largest output.{location}",
        cause=influence.origin or f"position {position} sees {later_position}",
        fix="Mask attention above the diagonal (is_causal=True), pad convolutions on the left only, and do not run a "
        "recurrent layer in both directions.",
        numbers={"pairs_ahead": len(influence.leaks), "most": largest},
        charts=(picture,),
        notes=remarks,
    )


def _measure_influence(context: ProofContext, model: nn.Module, batch: Any, max_positions: int) -> Influence:
    call = context.call(model, batch)
    B = batch_size(call.tree)
    exact = to_best_precision(model, call, context.target.seed)
    indices = content_tensors(exact.call, lambda leaf: leaf.dim() > 1 and leaf.shape[0] == B)
    T = tensors(exact.call.tree)[indices[0]].shape[1]
    if T < 2:
        raise NotApplicable(f"The input has {format_count(T, 'position')}, so there is no future.")
    indices = [index for index in indices if tensors(exact.call.tree)[index].shape[1] == T]
    original = _by_position(exact.baseline, B, T)
    # The chosen positions are adjacent: a mask one position too wide changes only values next to the diagonal.
    chosen = sorted({*range(min(T, max_positions // 2)), *range(max(0, T - (max_positions - max_positions // 2)), T)})
    grid = [[0.0] * len(chosen) for _ in chosen]
    leak: tuple[int, int] | None = None
    for column, s in enumerate(chosen):
        perturbed = _by_position(exact.run(_perturb(exact.call, indices, s)), B, T)
        for a, b in zip(original, perturbed, strict=True):
            change = relative_differences(a, b, 2, exact.tolerance).amax(0)
            for row, t in enumerate(chosen):
                grid[row][column] = max(grid[row][column], float(change[t]))
                if leak is None and s > t and grid[row][column]:
                    leak = (t, s)
    if not any(map(any, grid)):
        raise NotApplicable("No position has any influence on any output, so causality cannot be checked.")
    return Influence(positions=chosen, grid=grid, origin=_find_module(exact, indices, leak, (B, T)) if leak else "")


def _find_module(exact: PreciseModel, indices: list[int], leak: tuple[int, int], shape: tuple[int, int]) -> str:
    t = leak[0] + 1

    def same(a: Tensor, b: Tensor) -> bool:
        if a.dim() < 2 or tuple(a.shape[:2]) != shape or a.shape != b.shape:
            return True
        return not bool(relative_differences(a, b, 2, exact.tolerance)[:, :t].any())

    original = trace_modules(exact.model, exact.call, exact.seed)
    perturbed = trace_modules(exact.model, _perturb(exact.call, indices, leak[1]), exact.seed)
    return first_divergence(original, perturbed, same)


def _perturb(call: ModelCall, indices: list[int], s: int) -> ModelCall:
    def change(leaf: Tensor) -> Tensor:
        mask = torch.zeros(leaf.shape[:2], dtype=torch.bool, device=leaf.device)
        mask[:, s] = True
        return perturb(leaf, mask)

    return perturb_call(call, indices, change)


def _by_position(outputs: list[Tensor], B: int, T: int) -> list[Tensor]:
    aligned = [leaf for leaf in outputs if leaf.dim() > 1 and tuple(leaf.shape[:2]) == (B, T)]
    aligned += [
        leaf.transpose(1, 2)
        for leaf in outputs
        if leaf.dim() > 2 and tuple(leaf.shape[:2]) != (B, T) and leaf.shape[0] == B and leaf.shape[2] == T
    ]
    if not aligned:
        raise NotApplicable(f"The output {describe_batch(outputs)} has no dimension with the {T} positions.")
    return aligned


def _check_causal(context: ProofContext, model: nn.Module, batch: Any) -> None:
    if context.target.causal is True:
        return
    if context.target.causal is False:
        raise NotApplicable("The target has causal=False.")
    inputs = [leaf for leaf in tensors(context.call(model, batch).tree) if leaf.dim() == 2 and _is_integer(leaf)]
    targets = [leaf for leaf in tensors(batch) if leaf.dim() == 2 and _is_integer(leaf)]
    if not any(_is_shifted(x, y) for x in inputs for y in targets if x.shape[1] > 2):
        raise NotApplicable("It is unknown whether the model is causal: pass causal=True if it is.")


def _is_integer(leaf: Tensor) -> bool:
    return leaf.dtype in (torch.int64, torch.int32)


def _is_shifted(inputs: Tensor, targets: Tensor) -> bool:
    if targets.shape == (inputs.shape[0], inputs.shape[1] + 1):
        return torch.equal(targets[:, :-1], inputs)
    if targets.shape != inputs.shape or torch.equal(inputs, targets):
        return False
    is_counted = targets[:, :-1] != IGNORED
    matching = (targets[:, :-1] == inputs[:, 1:])[is_counted]
    return matching.numel() > 0 and float(matching.double().mean()) >= MIN_SHIFTED_SHARE


PROOF = Proof(title="Outputs do not depend on later positions", group="model", prove=future_unseen)
