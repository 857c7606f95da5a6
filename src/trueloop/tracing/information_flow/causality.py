"""Finds models that see the target of a position in their input, as a language model without a causal mask does.

The input and the targets are compared by value: where the targets are the input shifted by one position, the output at
a position must not depend on the next position of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.tracing.events import MeasuredLoss, TargetSeen
from trueloop.tracing.information_flow.reruns import Reruns, Run, differs, find_culprit, keeps_slices

MIN_COMPARED: Final = 8  # fewest targets of which a comparison with the input says something
SHIFTED: Final = 0.95  # smallest share of the targets that equal the next position of the input
NOT_CONSTANT: Final = 0.9  # largest share of the targets that equal their neighbour too, so that the shift is clear
MIN_POSITIONS: Final = 3
MIN_CHANGE: Final = 1e-3  # of the standard deviation of the output
CHECKED_ROWS: Final = 64  # rows of a loss's input that are compared with an output
REGRESSIONS: Final = frozenset(("mse", "l1", "smooth_l1", "huber"))


class _Answers(NamedTuple):
    """The output that a loss compares with its targets."""

    output: Tensor
    class_dim: int | None
    """Dimension of the classes or features; None = the output has none."""
    positions: Tensor
    """Row of the loss -> index of the position in the output's grid of batch and time."""
    grid: tuple[int, ...]

    def rows(self, tensor: Tensor) -> Tensor:
        """Return a tensor like the output, with one row for each position."""
        rows = tensor.detach() if self.class_dim is None else tensor.detach().movedim(self.class_dim, -1)
        return rows.reshape(*self.grid, -1)


class Shift(NamedTuple):
    """An argument whose values are the targets: those of the previous position, or of the same one."""

    leaf: int
    """Index of the argument."""
    dim: int
    """Index of the dimension of time within the grid of batch and time."""
    by: int
    """1 = the target of a position is the next position of the input; 0 = the same position."""


class Causality(NamedTuple):
    """What is known about time in a model."""

    shift: Shift | None
    seen: TargetSeen | None


def judge_causality(reruns: Reruns, losses: Sequence[MeasuredLoss]) -> Causality:
    """Return the shift between an argument and the targets, and evidence if a position sees its target.

    Cost: one or two runs of the model, up to seven if the targets are the input itself, and none if no argument has the
    values of the targets.
    """
    usable = [each for each in losses if each.kind == "nll" or each.kind in REGRESSIONS]
    if not any(_may_be_shifted(reruns, each) for each in usable):
        return Causality(None, None)
    run = reruns.run({}, evaluating=False)
    for loss in usable:
        answers = _find_answers(run, loss)
        if answers is None:
            continue
        shifts = list(_find_shifts(reruns, answers, _flat_targets(loss), loss.ignore_index))
        seen = (_judge(reruns, run, answers, shift) for shift in shifts)
        if shifts:
            return Causality(shifts[0], next((each for each in seen if each is not None), None))
    return Causality(None, None)


def _may_be_shifted(reruns: Reruns, loss: MeasuredLoss) -> bool:
    """Return True if at least half of some targets occur in an argument that has half as many values or more."""
    targets = loss.targets.flatten()
    if targets.numel() < MIN_COMPARED:
        return False
    for _, leaf in reruns.tensors():
        values = _comparable(leaf, loss.kind)
        if values is not None and values.numel() >= 0.5 * targets.numel():
            known = torch.isin(targets[:: -(-targets.numel() // 512)].to(values.dtype), values)
            if known.double().mean().item() >= 0.5:  # ignored targets are not in the input
                return True
    return False


def _comparable(leaf: Tensor, kind: str) -> Tensor | None:
    """Return an argument in the form of targets: token ids, or the numbers of a regression."""
    if kind in REGRESSIONS:
        return leaf if leaf.is_floating_point() else None
    if leaf.dtype in (torch.long, torch.int):
        return leaf
    is_one_hot = leaf.is_floating_point() and leaf.dim() in (2, 3) and leaf.shape[-1] > 1
    if is_one_hot and bool(((leaf == 0) | (leaf == 1)).all()) and bool((leaf.sum(-1) == 1).all()):
        return leaf.argmax(-1)
    return None


# The output that the loss compares ------------------------------------------------------------------------------


def _flat_targets(loss: MeasuredLoss) -> Tensor:
    """Return the targets with one row for each row of `_flat_answers`."""
    if loss.kind == "nll":
        return loss.targets.reshape(-1, 1)
    return loss.targets.reshape(-1, loss.targets.shape[-1] if loss.targets.dim() > 2 else 1)


def _flat_answers(loss: MeasuredLoss) -> Tensor:
    answers = loss.answers
    if loss.kind == "nll":
        return answers.movedim(1, -1).reshape(-1, answers.shape[1])
    return answers.reshape(-1, answers.shape[-1] if answers.dim() > 2 else 1)


def _find_answers(run: Run, loss: MeasuredLoss) -> _Answers | None:
    """Return the output of the model, or the tensor within it, that the loss has compared."""
    if loss.kind in REGRESSIONS and loss.answers.shape != loss.targets.shape:
        return None
    wanted = _flat_answers(loss)
    flat = None
    inner = (each for operation in reversed(run.operations) for each in operation.results)
    for number, tensor in enumerate((*run.outputs, *inner)):
        if number > 400 or not tensor.is_floating_point() or not 1 < tensor.dim() < 5:
            continue
        for class_dim in _class_dims(tensor, loss.kind, wanted.shape[1]):
            answers = _matching(tensor, class_dim, wanted, loss.kind)
            if answers is not None and len(answers.grid) == 2:
                return answers
            flat = flat or answers  # the dimensions of batch and time are joined, unless there is a single sequence
    return flat


def _class_dims(tensor: Tensor, kind: str, size: int) -> list[int | None]:
    dims: list[int | None] = [dim for dim in (tensor.dim() - 1, 1) if tensor.shape[dim] == size]
    if kind in REGRESSIONS and size == 1:
        dims.append(None)
    return list(dict.fromkeys(dims))


def _matching(tensor: Tensor, class_dim: int | None, wanted: Tensor, kind: str) -> _Answers | None:
    """Return the positions of a loss's rows in a tensor, from their number and a comparison of values."""
    rows = tensor.detach() if class_dim is None else tensor.detach().movedim(class_dim, -1)
    if class_dim is None:
        rows = rows.unsqueeze(-1)
    grid = [size for size in rows.shape[:-1] if size > 1] or [1]
    if len(grid) > 2:
        return None
    rows = rows.reshape(-1, rows.shape[-1])
    every = -(-len(wanted) // CHECKED_ROWS)
    for positions in _slices(torch.arange(len(rows)).reshape(grid), len(wanted)):
        checked = rows[positions[::every]]
        for transform in _TRANSFORMS if kind == "nll" else _TRANSFORMS[:1]:
            if torch.allclose(transform(checked).to(wanted.dtype), wanted[::every], rtol=1e-3, atol=1e-4):
                return _Answers(tensor, class_dim, positions, tuple(grid))
    return None


_TRANSFORMS: Final[tuple[Callable[[Tensor], Tensor], ...]] = (
    lambda rows: rows,
    lambda rows: rows.float().log_softmax(-1),
    lambda rows: rows.float().clamp_min(1e-30).log(),
)


def _slices(grid: Tensor, count: int) -> Iterator[Tensor]:
    """Yield the parts of a grid of batch and time that have a number of positions, in the order of the loss."""
    parts = [grid, grid[:-1], grid[1:]]
    if grid.dim() == 2:
        parts += [grid[:, :-1], grid[:, 1:]]
    for part in parts:
        if part.numel() == count:
            yield part.flatten()
            if part.dim() == 2:
                yield part.t().flatten()


# The argument with the same values ------------------------------------------------------------------------------


def _find_shifts(reruns: Reruns, answers: _Answers, targets: Tensor, ignored: int | None) -> Iterator[Shift]:
    """Yield the shift from an argument to the targets; without a shift, once for each dimension that may be time."""
    for place, leaf in reruns.tensors():
        values = _comparable(leaf, "mse" if targets.is_floating_point() else "nll")
        columns = None if values is None else _columns(values, answers, targets.shape[1])
        if columns is None:
            continue
        dims = range(len(answers.grid))
        nexts = [_equal_share(columns, answers, targets, (dim, 1), ignored) for dim in dims]
        same = _equal_share(columns, answers, targets, (0, 0), ignored)
        if same < NOT_CONSTANT and max(nexts) >= SHIFTED:
            yield Shift(place, nexts.index(max(nexts)), 1)
            return
        if same == 1 and max(nexts) < NOT_CONSTANT and not targets.is_floating_point():
            yield from (Shift(place, dim, 0) for dim in reversed(dims))
            return


def _columns(values: Tensor, answers: _Answers, width: int) -> Tensor | None:
    """Return an argument with the dimensions of the output's grid first; None if it has others."""
    dims = [size for size in values.shape if size > 1]
    dims = dims[:-1] if width > 1 else dims
    grid = answers.grid
    fits = len(dims) == len(grid) and all(0 <= has - needed <= 2 for has, needed in zip(dims, grid, strict=True))
    return values.reshape(*dims, width) if fits and values.numel() == _product(dims) * width else None


def _product(sizes: Sequence[int]) -> int:
    return int(torch.Size(sizes).numel())


def _equal_share(
    columns: Tensor, answers: _Answers, targets: Tensor, shift: tuple[int, int], ignored: int | None
) -> float:
    """Return the share of targets that are equal to the input at a shifted position."""
    dim, by = shift
    indices = list(torch.unravel_index(answers.positions, answers.grid))
    indices[dim] = indices[dim] + by
    counted = indices[dim] < columns.shape[dim]
    if not targets.is_floating_point() and ignored is not None:
        counted &= targets[:, 0] != ignored
    if int(counted.sum()) < MIN_COMPARED:
        return 0.0
    values = columns[tuple(index[counted] for index in indices)].to(targets.dtype)
    equal = (
        torch.isclose(values, targets[counted]).all(1)
        if targets.is_floating_point()
        else (values == targets[counted]).all(1)
    )
    return equal.double().mean().item()


# What the output depends on -------------------------------------------------------------------------------------


def _judge(reruns: Reruns, run: Run, answers: _Answers, shift: Shift) -> TargetSeen | None:
    """Change the input after a position, and compare the output up to it."""
    steps = answers.grid[shift.dim]
    if steps < MIN_POSITIONS:
        return None
    last = steps // 2 - 1 if shift.by else steps // 2
    other = reruns.run({shift.leaf: _changed_after(reruns.leaves[shift.leaf], shift.dim, last)}, evaluating=False)
    counterpart = run.counterpart(other, answers.output)
    if counterpart.shape != answers.output.shape or not bool(answers.output.isfinite().all()):
        return None
    change = _change(answers, counterpart, shift.dim)
    if shift.by == 0:
        return _judge_unshifted(reruns, run, answers, (shift, last)) if bool((change[: last + 1] == 0).all()) else None
    if change[last].item() < MIN_CHANGE or change[last + 1 :].max().item() < MIN_CHANGE:
        return None

    def needed(size: int) -> float:
        return (last + 1) * (size // steps) if size >= steps else size * (last + 1) // steps

    culprit = find_culprit(run, other, answers.output, lambda values, others: not keeps_slices(values, others, needed))
    return TargetSeen(
        location=culprit.location if culprit else None,
        operation=culprit.name if culprit else "",
        change=change[last].item(),
        future=int((change[: last + 1] >= MIN_CHANGE).sum()) / (last + 1),
        position=last,
        steps=steps,
    )


def _judge_unshifted(reruns: Reruns, run: Run, answers: _Answers, at: tuple[Shift, int]) -> TargetSeen | None:
    """Return evidence if a position of a causal model depends on its own input, which is its target, and on earlier."""
    shift, last = at
    for first, until in ((last, None), (0, last)):
        leaf = _changed_after(reruns.leaves[shift.leaf], shift.dim, first - 1, until)
        counterpart = run.counterpart(reruns.run({shift.leaf: leaf}, evaluating=False), answers.output)
        if _change(answers, counterpart, shift.dim)[last].item() < MIN_CHANGE:
            return None
    return TargetSeen(
        location=None, operation="", change=0.0, future=0.0, position=last, steps=answers.grid[shift.dim], shifted=False
    )


def _change(answers: _Answers, counterpart: Tensor, dim: int) -> Tensor:
    """Return the mean change of the output at each position, relative to the output's spread; 0 up to rounding."""
    before, after = answers.rows(answers.output), answers.rows(counterpart)
    different = differs(before, after)
    change = torch.where(different, (before - after).abs(), 0.0).double()
    return change.movedim(dim, 0).flatten(1).mean(1) / (before.double().std() + 1e-12)


def _changed_after(leaf: Any, dim: int, last: int, until: int | None = None) -> Tensor:
    """Return an argument with other values after position ``last`` along time, up to ``until``."""
    generator = torch.Generator().manual_seed(0)
    wide = [at for at, size in enumerate(leaf.shape) if size > 1]
    time = wide[dim]
    changed = leaf.detach().clone()
    after = changed.movedim(time, 0)[last + 1 : until]  # a view
    if leaf.is_floating_point():
        is_one_hot = _comparable(leaf, "nll") is not None
        noise = torch.randn(after.shape, generator=generator).to(leaf.dtype)
        after.copy_(after.roll(1, -1) if is_one_hot else after + noise * (leaf.detach().std() + 1e-3))
        return changed
    known, inverse = leaf.unique(return_inverse=True)
    steps = torch.randint(1, max(2, len(known)), after.shape, generator=generator)
    number = inverse.movedim(time, 0)[last + 1 : until]
    after.copy_(known[(number + steps) % len(known)])
    return changed
