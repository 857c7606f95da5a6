"""Finds models whose output for one sample depends on the other samples of the batch.

Half of the samples get the values of the others; the outputs of the other half must not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from trueloop.tracing.events import MeasuredLoss, SamplesMixed
from trueloop.tracing.information_flow.reruns import Operation, Reruns, Run, differs, find_culprit, keeps_slices

MIN_ROWS: Final = 4
MIN_AFFECTED_SHARE: Final = 0.75  # of the unchanged samples; routing with a capacity affects only a few of them
_BATCH_NORMS: Final = ("batch_norm", "instance_norm")


class Batch(NamedTuple):
    """What the program shows about the batch of a call."""

    losses: Sequence[MeasuredLoss]
    time_is_second: bool
    """Whether the targets are the input shifted along its second dimension, so the first one is the batch."""
    single_shapes: Sequence[tuple[int, ...]]
    """Shapes of other inputs of the same model, without a batch dimension."""
    loader_size: int | None
    """Batch size of the loader; None = no loader is used, or it returns single samples."""
    shuffled: bool
    """Whether this loader shuffles."""


class BatchVerdict(NamedTuple):
    """Whether samples are mixed."""

    judged: bool
    mixed: SamplesMixed | None
    input_ignored: bool = False
    """Whether no output changed at all, also those of the samples that got other values."""


NOT_JUDGED: Final = BatchVerdict(judged=False, mixed=None)


def judge_batch(reruns: Reruns, batch: Batch) -> BatchVerdict:
    """Return whether the model mixes the samples of the batch.

    Cost: three or four runs of the model in eval mode.
    """
    contents = [(place, leaf) for place, leaf in reruns.tensors() if _is_content(leaf)]
    if not contents or _normalises_over_batch(reruns.module):
        return NOT_JUDGED
    rows = contents[0][1].shape[0]
    is_sure, may_be = _is_batch(contents[0][1], batch)
    run = reruns.run({}, evaluating=True) if may_be else None
    output = None if run is None else next((each for each in run.outputs if each.is_floating_point()), None)
    if run is None or output is None or run.is_random or not _is_one_per_row(output, rows):
        return NOT_JUDGED
    changed, kept = _halves(rows)
    verdicts = [_judge(reruns, run, output, (place, changed, kept)) for place, leaf in contents if len(leaf) == rows]
    effective = [each for each in verdicts if isinstance(each, tuple)]
    if not effective:
        return NOT_JUDGED._replace(input_ignored=len(verdicts) == len(contents) and all(each == 0 for each in verdicts))
    share = min(each[0] for each in effective)
    if share < MIN_AFFECTED_SHARE:
        return BatchVerdict(judged=True, mixed=None)
    mixed = _describe(effective[0][1], (rows, len(kept), round(share * len(kept))))
    may_be_steps = _may_be_steps(mixed, rows, output) if mixed.is_recurrent else _is_flat(mixed.shape, rows)
    is_known = mixed.operation not in _BATCH_NORMS and (is_sure or not may_be_steps)
    return BatchVerdict(judged=True, mixed=mixed) if is_known else NOT_JUDGED


def _halves(rows: int) -> tuple[Tensor, Tensor]:
    """Return rows to change and rows to keep: one of each two neighbours, as recurrent layers forget what is far."""
    generator = torch.Generator().manual_seed(0)
    first = torch.arange(0, rows - 1, 2)
    swap = torch.randint(2, (len(first),), generator=generator)
    swap[0] = 0  # no row before the first one would reach it
    kept = torch.cat((first + 1 - swap, torch.arange(rows - rows % 2, rows)))
    return first + swap, kept[torch.randperm(len(kept), generator=generator)]


def _describe(culprit: Operation | None, counts: tuple[int, int, int]) -> SamplesMixed:
    rows, kept, affected = counts
    if culprit is None:
        return SamplesMixed(None, "", "", (), rows, kept, affected)
    shape = culprit.input_shapes[0] if culprit.input_shapes else ()
    return SamplesMixed(culprit.location, culprit.name, culprit.module, shape, rows, kept, affected)


def _is_content(leaf: Tensor) -> bool:
    """Return True for features or tokens, but not for a mask, lengths or indices."""
    if leaf.dim() < 2 or leaf.shape[0] < MIN_ROWS or leaf.dtype is torch.bool:
        return False
    return leaf.is_floating_point() or len(leaf.unique()) > 2


def _is_batch(content: Tensor, batch: Batch) -> tuple[bool, bool]:
    """Return whether the first dimension is certainly the batch, and whether it may be."""
    rows = content.shape[0]
    if tuple(content.shape[1:]) in batch.single_shapes:
        return True, True
    if content.shape[1] == rows:
        return False, False  # the dimensions cannot be distinguished
    if batch.time_is_second:
        return True, True
    targets = [each.targets for each in batch.losses if each.targets.dim() and each.targets.shape[0] == rows]
    if not targets or all(bool((each == each.flatten()[0]).all()) for each in targets):
        return False, False  # the targets of a discriminator or of a contrastive loss are all equal
    if batch.loader_size is not None:
        is_sure = batch.loader_size == rows and batch.shuffled
        return is_sure, batch.loader_size == rows and (is_sure or _has_structured_samples(content))
    return False, _has_structured_samples(content)


def _has_structured_samples(content: Tensor) -> bool:
    """Return True if each sample has several dimensions, or is a row of tokens."""
    return content.dim() > 2 or not content.is_floating_point()


def _is_flat(shape: tuple[int, ...], rows: int) -> bool:
    """Return True if each sample is one row of numbers at an operation, so the rows may be the steps of a sequence."""
    return len([size for size in shape if size > 1]) < 3 or rows not in shape


def _may_be_steps(mixed: SamplesMixed, rows: int, output: Tensor) -> bool:
    """Return True if the rows may be the steps of a recurrent layer: of one sequence, or with an output for each."""
    is_several = len(mixed.shape) == 3 and mixed.shape[0] == rows and mixed.shape[1] > 1
    return not is_several or mixed.shape[1] in output.shape[1:]


def _normalises_over_batch(module: nn.Module) -> bool:
    """Return True if a batch normalisation uses the statistics of the batch in eval mode too."""
    return any(
        isinstance(each, nn.modules.batchnorm._BatchNorm) and each.running_mean is None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        for each in module.modules()
    )


def _is_one_per_row(output: Tensor, rows: int) -> bool:
    """Return True if the output has one part for each sample; not if it compares samples with each other."""
    return (
        output.dim() > 0 and output.shape[0] == rows and rows not in output.shape[1:] and bool(output.isfinite().all())
    )


def _judge(
    reruns: Reruns, run: Run, output: Tensor, at: tuple[int, Tensor, Tensor]
) -> tuple[float, Operation | None] | float | None:
    """Return the share of the unchanged samples whose output changes, and the operation that mixes samples.

    0.0 if other values of the argument change no output at all, None if they change few of their own samples.
    """
    place, changed, kept = at
    leaf: Any = reruns.leaves[place].detach().clone()
    leaf[changed] = leaf[kept[: len(changed)]]
    other = reruns.run({place: leaf}, evaluating=True)
    counterpart = run.counterpart(other, output)
    if counterpart.shape != output.shape:
        return None
    if torch.equal(output.detach(), counterpart.detach()):
        return None if torch.equal(leaf, reruns.leaves[place]) else 0.0
    different = differs(output.detach(), counterpart.detach()).reshape(len(leaf), -1).any(1)
    share = different[kept].double().mean().item()
    if different[changed].double().mean().item() < 0.5 and share < MIN_AFFECTED_SHARE:
        return None

    def is_mixed(values: Tensor, others: Tensor) -> bool:
        return not keeps_slices(values, others, lambda size: 0.6 * size * len(kept) / len(leaf))

    return share, find_culprit(run, other, output, is_mixed) if share >= MIN_AFFECTED_SHARE else None
