"""Masked positions have no influence: padding changes neither the loss nor the outputs of valid positions.

If attention, pooling or the loss includes padding, a sample's result depends on the lengths of the other samples.
"""

# ruff: noqa: N803, N806, N815 - shapes are part of the name: B samples, T positions

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import format_count, format_float
from trueloop.verification.batch_tree import describe_batch, leaves, map_tensors, select_samples, to_double
from trueloop.verification.evidence import Evidence, NotApplicable, Verdict, broken, holds
from trueloop.verification.influence import (
    FLOAT64_TOLERANCE,
    LOW_PRECISION_TOLERANCE,
    max_difference,
    perturb,
    relative_differences,
)
from trueloop.verification.model_call import model_outputs
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext, TrainingCopy

MASK_NAMES = ("attention_mask", "mask", "padding_mask", "key_padding_mask", "src_key_padding_mask")
IGNORED = -100  # the default ignore_index of nn.CrossEntropyLoss
MAX_BATCHES, MAX_SAMPLES = 20, 8
"""Largest number of batches to search for padding, and of samples to check."""
FIX = "Pass the mask to attention and pooling, and exclude padding from the loss (ignore_index, or a masked mean)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A mask of the valid positions of a batch."""

    valid_BT: Tensor
    """Bool tensor that is True at valid positions."""
    compute: Callable[[Any], Tensor] | None = None
    """The user's function that computes ``valid_BT`` from a batch; None if the mask is not computed."""

    def select(self, indices: Tensor) -> Mask:
        """Return the mask of the samples with these indices."""
        return replace(self, valid_BT=self.valid_BT[indices])


def mask_respected(context: ProofContext) -> Evidence:
    """Change the values at masked positions, and check whether the loss or the output of a valid position changes.

    Args:
        context: context of a target with a bool mask in its batch, or with ``mask=``.
    """
    training = context.training_copy()
    training.model.eval()
    first: Evidence | None = None
    for batch, mask in _masked_samples(context):
        evidence = (
            _compare_trimmed(context, training, batch, mask)
            if _depends_on_content(mask, batch)
            else _compare_perturbed(context, training, batch, mask)
        )
        if evidence.verdict is Verdict.HOLDS:
            return evidence
        first = first or evidence
    if first is None:
        raise NotApplicable("No position of the batch is masked: pass a batch with padding, and mask= if needed.")
    return first


def _masked_samples(context: ProofContext) -> list[tuple[Any, Mask]]:
    """Return samples with masked and valid positions from the first such batch, once with each candidate mask."""
    for batch in context.iter_batches(MAX_BATCHES):
        candidates: list[tuple[Any, Mask]] = []
        for mask in _candidate_masks(context, batch):
            partly_valid = (~mask.valid_BT).any(1) & mask.valid_BT.any(1)
            if bool(partly_valid.any()):
                indices = partly_valid.nonzero().flatten()[:MAX_SAMPLES]
                candidates.append((select_samples(batch, indices), mask.select(indices)))
        if candidates:
            return candidates
    return []


def _candidate_masks(context: ProofContext, batch: Any) -> list[Mask]:
    """Return the target's mask or, without one, every tensor that may be a mask, in both polarities."""
    mask = context.target.mask
    if isinstance(mask, Tensor):
        return [Mask(valid_BT=mask.bool().to(context.device))]
    if isinstance(mask, str):
        return [Mask(valid_BT=_find_tensor(batch, mask).bool())]
    if callable(mask):
        compute = cast("Callable[[Any], Tensor]", mask)
        return [Mask(valid_BT=compute(batch).bool(), compute=lambda changed: compute(changed).bool())]
    if mask is not None:
        raise InvalidConfig(f"mask is {type(mask).__name__}.", fix="Pass a name, a tensor [B, T] or a function.")
    candidates = [leaf for path, leaf in leaves(batch) if _may_be_mask(path, leaf)]
    return [Mask(valid_BT=valid_BT) for leaf in candidates for valid_BT in (leaf.bool(), ~leaf.bool())]


def _may_be_mask(path: str, leaf: Tensor) -> bool:
    if leaf.dim() != 2:
        return False
    return leaf.dtype is torch.bool or any(path.endswith(f"['{name}']") for name in MASK_NAMES)


def _find_tensor(batch: Any, name: str) -> Tensor:
    by_path = dict(leaves(batch))
    for path, leaf in by_path.items():
        if path.endswith((f"['{name}']", f".{name}")):
            return leaf
    raise InvalidConfig(
        f"The batch has no {name!r}.", fix=f"It has {', '.join(by_path)}: name one of these, or pass a function."
    )


def _depends_on_content(mask: Mask, batch: Any) -> bool:
    """Return True if the mask is computed from the content, so that different content gives a different mask."""
    if mask.compute is None:
        return False
    return not torch.equal(mask.compute(_perturb_masked(batch, mask.valid_BT)), mask.valid_BT)


def _perturb_masked(batch: Any, valid_BT: Tensor) -> Any:
    def change(leaf: Tensor) -> Tensor:
        fits = leaf.dim() > 1 and leaf.shape[:2] == valid_BT.shape and leaf.dtype is not torch.bool
        if not fits or _is_flag(leaf):
            return leaf
        masked = ~valid_BT.reshape(*valid_BT.shape, *[1] * (leaf.dim() - 2)).expand_as(leaf)
        try:
            perturbed = perturb(leaf, masked.any(-1) if leaf.dim() > 2 else masked)
        except NotApplicable:  # all values are equal: no other valid value is known
            return leaf
        return leaf if leaf.is_floating_point() is False and bool((leaf == IGNORED)[masked].all()) else perturbed

    return map_tensors(batch, change)


def _is_flag(leaf: Tensor) -> bool:
    return not leaf.is_floating_point() and int(leaf.min()) >= 0 and int(leaf.max()) <= 1


def _compare_perturbed(context: ProofContext, training: TrainingCopy, batch: Any, mask: Mask) -> Evidence:
    """Compare the results for the batch and for a copy that has other values at masked positions."""
    perturbed = _perturb_masked(batch, mask.valid_BT)
    if all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(batch), leaves(perturbed), strict=True)):
        raise NotApplicable(
            f"Nothing in the batch {describe_batch(batch)} has the mask's shape {list(mask.valid_BT.shape)}."
        )
    return _compare(context, training, (batch, perturbed), (mask.valid_BT, mask.valid_BT), "when masked values change")


def _compare_trimmed(context: ProofContext, training: TrainingCopy, batch: Any, mask: Mask) -> Evidence:
    """Compare the results for the sample with the most padding, with and without its padding."""
    sample = int(mask.valid_BT.sum(1).argmin())
    row_T = mask.valid_BT[sample]
    length = int(row_T.sum())
    if not length or not bool(row_T[:length].all()):
        raise NotApplicable("The mask is computed from the content, but the padding is not at the end.")
    T = row_T.shape[0]
    alone = select_samples(batch, torch.tensor([sample], device=context.device))
    trimmed = map_tensors(alone, lambda leaf: leaf[:, :length] if leaf.dim() > 1 and leaf.shape[1] == T else leaf)
    valid = (row_T[None], row_T[None, :length])
    return _compare(context, training, (alone, trimmed), valid, f"when the padding of sample {sample} is cut off")


def _compare(
    context: ProofContext, training: TrainingCopy, pair: tuple[Any, Any], valid: tuple[Tensor, Tensor], condition: str
) -> Evidence:
    (loss_a, out_a, tolerance), (loss_b, out_b, _) = (_measure(context, training, batch) for batch in pair)
    change = 0.0
    for a, b in zip(out_a, out_b, strict=True):
        if a.dim() > 1 and a.shape[:2] == valid[0].shape and b.shape[:2] == valid[1].shape:
            change = max(change, float(relative_differences(a[valid[0]], b[valid[1]], 0, tolerance)))
        elif a.dim() and a.shape == b.shape and (a.dim() < 2 or a.shape[1] + 1 != valid[0].shape[1]):
            change = max(change, max_difference(a, b, tolerance))  # an output per sample must not depend on padding
    loss_change = 0.0 if loss_a is None or loss_b is None else max_difference(loss_a, loss_b, tolerance)
    masked_count = int((~valid[0]).sum())
    numbers = {"masked_positions": masked_count, "outputs_move": change, "loss_moves": loss_change}
    if not change and not loss_change:
        unchanged = "no output changes" if loss_a is None else "neither the outputs nor the loss change"
        sentence = f"With {format_count(masked_count, 'position')} masked, {unchanged} {condition}."
        return holds(sentence, numbers=numbers)
    effects = [f"outputs of valid positions change by {format_float(change)}"] if change else []
    effects += [f"the loss changes by {format_float(loss_change)} of its value"] if loss_change else []
    cause = "the model" if change else "the loss"
    return broken(
        f"Masked positions have influence: {condition}, {' and '.join(effects)}.", cause=cause, fix=FIX, numbers=numbers
    )


def _measure(context: ProofContext, training: TrainingCopy, batch: Any) -> tuple[Tensor | None, list[Tensor], float]:
    try:
        training.model.double()
        return *_loss_and_outputs(context, training, to_double(batch)), FLOAT64_TOLERANCE
    except (RuntimeError, TypeError):  # the model or loss supports only one precision
        training.model.float()
        return *_loss_and_outputs(context, training, batch), LOW_PRECISION_TOLERANCE


def _loss_and_outputs(context: ProofContext, training: TrainingCopy, batch: Any) -> tuple[Tensor | None, list[Tensor]]:
    with torch.no_grad():
        loss = None if training.loss is None else training.mean_loss(batch).detach()
    return loss, model_outputs(training.model, context.call(training.model, batch), context.target.seed)


PROOF = Proof(title="Masked positions have no influence", group="model", prove=mask_respected)
