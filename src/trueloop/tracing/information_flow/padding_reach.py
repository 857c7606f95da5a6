"""Finds models whose output for a short sample depends on the padding behind it.

The short samples of a batch are run again without the columns that are padding for all of them. Masks and lengths are
cut in the same way, so nothing has to be known about their meaning.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from trueloop.tracing.events import PaddingReached
from trueloop.tracing.information_flow.reruns import Reruns, Run, differs, find_culprit

MIN_ROWS: Final = 4
MAX_ROWS: Final = 32  # short samples that are run again
MIN_SHORT: Final = 2
NOTICEABLE: Final = 1e-3  # change of an output, relative to the spread of the outputs


class _Padded(NamedTuple):
    """A padded argument."""

    place: int
    leaf: Tensor
    lengths: Tensor
    """Length of each sample without padding, of shape (B,)."""
    value: float


class PaddingVerdict(NamedTuple):
    """Whether padding is read."""

    judged: bool
    padding: PaddingReached | None


NOT_JUDGED: Final = PaddingVerdict(judged=False, padding=None)


def judge_padding(reruns: Reruns, lengths_seen: set[int]) -> PaddingVerdict:
    """Return whether the output of short samples depends on their padding.

    Args:
        reruns: the call of the model.
        lengths_seen: sizes of the second dimension of the model's input so far.

    Cost: three runs of the model in eval mode; none if the batch has no padding.
    """
    padded = _find_padding(reruns)
    if padded is None:
        return NOT_JUDGED
    total = padded.leaf.shape[1]
    short = padded.lengths[padded.lengths < total]
    longest = int(short.sort().values[(len(short) - 1) // 2])
    rows = (padded.lengths <= longest).nonzero().flatten()[:MAX_ROWS]
    if len(rows) < MIN_SHORT or longest < 1:
        return NOT_JUDGED
    whole = reruns.run({}, evaluating=True)
    alone = reruns.run(_cut(reruns, padded, rows, total), evaluating=True)
    trimmed = reruns.run(_cut(reruns, padded, rows, longest), evaluating=True)
    output = next((each for each in alone.outputs if each.is_floating_point() and each.dim()), None)
    if output is None or alone.is_random or trimmed.is_random:
        return NOT_JUDGED
    before = alone.counterpart(whole, output)
    if before.shape[0] != len(padded.leaf) or differs(before[rows].detach(), output.detach()).any():
        return NOT_JUDGED  # the samples are not independent
    return _compare((alone, trimmed), output, padded, rows, (longest, len(lengths_seen) > 1), reruns)


def _find_padding(reruns: Reruns) -> _Padded | None:
    embeddings = [each for each in reruns.module.modules() if isinstance(each, nn.Embedding)]
    known = {each.padding_idx for each in embeddings if each.padding_idx is not None}
    for place, leaf in reruns.tensors():
        if leaf.dim() < 2 or leaf.dim() > 3 or leaf.shape[0] < MIN_ROWS or leaf.shape[1] < 3:
            continue
        is_tokens = leaf.dim() == 2 and leaf.dtype in (torch.long, torch.int)
        if is_tokens and len(leaf.unique()) > 3:
            values = [float(each) for each in known] or [leaf[:, -1].mode().values.item()]
        elif leaf.dim() == 3 and leaf.is_floating_point():
            values = [0.0]
        else:
            continue
        for value in values:
            lengths = _lengths(leaf, value, is_known=is_tokens and bool(known))
            if lengths is not None:
                return _Padded(place, leaf, lengths, value)
    return None


def _lengths(leaf: Tensor, value: float, *, is_known: bool) -> Tensor | None:
    """Return the length of each sample without the padding behind it; None if it is not clear that it is padding."""
    is_value = leaf == value
    if leaf.dim() == 3:
        is_value = is_value.all(2)
    tail = is_value.flip(1).long().cumprod(1).sum(1)
    lengths = leaf.shape[1] - tail
    inside = int(is_value.sum() - tail.sum())
    has_padding = tail > 0
    if int(has_padding.sum()) < MIN_SHORT or len(lengths.unique()) < 2 or bool((lengths == 0).any()):
        return None
    if bool(is_value[:, 0].any()) or inside > (0.02 * leaf.numel() if is_known else 0):
        return None
    is_clear = is_known or int(tail[has_padding].median()) > 1
    return lengths if is_clear else None


def _cut(reruns: Reruns, padded: _Padded, rows: Tensor, length: int) -> dict[int, Any]:
    """Return all arguments with some samples, and without the columns from a length on."""
    count, total = padded.leaf.shape[:2]
    changes: dict[int, Any] = {}
    for place, leaf in enumerate(reruns.leaves):
        if isinstance(leaf, list) and len(leaf) == count:
            changes[place] = [leaf[row] for row in rows.tolist()]
        elif isinstance(leaf, Tensor) and leaf.dim():
            cut = leaf[rows] if leaf.shape[0] == count else leaf
            is_square = leaf.dim() == 2 and leaf.shape == (total, total) and total != count
            if is_square:
                cut = leaf[:length, :length]
            elif cut.dim() > 1 and leaf.shape[0] == count:
                is_mask = leaf.dtype is torch.bool or leaf.dim() > 3
                for dim in range(1, cut.dim() if is_mask else 2):
                    cut = cut.narrow(dim, 0, length) if cut.shape[dim] == total else cut
            changes[place] = cut.detach().clone()
    return changes


def _compare(
    runs: tuple[Run, Run], output: Tensor, padded: _Padded, rows: Tensor, lengths: tuple[int, bool], reruns: Reruns
) -> PaddingVerdict:
    alone, trimmed = runs
    longest, length_varies = lengths
    total = padded.leaf.shape[1]
    before, after = output.detach(), alone.counterpart(trimmed, output).detach()
    valid = torch.ones(len(rows), 1, dtype=torch.bool)
    sizes = zip(before.shape, after.shape, strict=False)
    time = next((dim for dim, pair in enumerate(sizes) if dim and pair == (total, longest)), None)
    if time is not None:
        before, after = before.movedim(time, 1)[:, :longest], after.movedim(time, 1)
        valid = torch.arange(longest) < padded.lengths[rows][:, None]
    if before.shape != after.shape or not bool(before.isfinite().all()):
        return NOT_JUDGED
    change = torch.where(differs(before, after), (before - after).abs().double().nan_to_num(nan=torch.inf), 0.0)
    change = change.reshape(*valid.shape, -1).mean(-1) / (before.double().std() + 1e-12)
    change = change.where(valid, 0.0).sum(1) / valid.sum(1)
    is_affected, is_full = change > NOTICEABLE, padded.lengths[rows] == longest
    affected, broken = is_affected.double().mean().item(), int(change.isinf().sum())
    # If all samples without remaining padding change, the model reads padding, however much of it there is.
    if affected < 0.5 and not bool(is_affected[is_full].all()):
        return PaddingVerdict(judged=True, padding=None)
    # Samples that are still padded may differ little after a few steps of padding: those that are not show the harm.
    sizes_of_change = [change[each].median().item() for each in (is_affected, is_affected & is_full) if each.any()]
    culprit = find_culprit(alone, trimmed, output, _differs_in_common)
    flipped = 0 if time is not None or before.dim() < 2 or broken else int((before.argmax(1) != after.argmax(1)).sum())
    return PaddingVerdict(judged=True, padding=PaddingReached(
        location=culprit.location if culprit else None, operation=culprit.name if culprit else "",
        padding=padded.value, rows=len(rows), affected=affected, change=max(sizes_of_change),
        flipped=flipped,
        lengths=(int(padded.lengths[rows].min()), total), per_position=time is not None, broken=broken,
        is_declared=_is_declared(reruns, padded), length_varies=length_varies,
    ))  # fmt: skip


def _differs_in_common(values: Tensor, others: Tensor) -> bool:
    """Return True if the common parts of two tensors differ, which may have another number of positions."""
    if values.dim() != others.dim():
        return True
    for dim in range(values.dim()):
        size = min(values.shape[dim], others.shape[dim])
        values, others = values.narrow(dim, 0, size), others.narrow(dim, 0, size)
    return bool(differs(values, others).any())


def _is_declared(reruns: Reruns, padded: _Padded) -> bool:
    """Return True if another argument has the lengths, or a mask, of the padding."""
    mask = torch.arange(padded.leaf.shape[1]) < padded.lengths[:, None]
    for place, leaf in enumerate(reruns.leaves):
        if place == padded.place:
            continue
        if isinstance(leaf, list) and leaf == padded.lengths.tolist():
            return True
        if not isinstance(leaf, Tensor):
            continue
        is_lengths = leaf.shape == padded.lengths.shape and bool((leaf == padded.lengths).all())
        is_mask = leaf.shape == mask.shape and (bool((leaf.bool() == mask).all()) or bool((leaf.bool() != mask).all()))
        if is_lengths or is_mask:
            return True
    return False
