"""Metrics that accumulate over items, so that their value does not depend on how the data is split into batches."""

from __future__ import annotations

from copy import copy
from typing import Any, Protocol, Self, cast, runtime_checkable

import torch
from torch import Tensor

from trueloop.core.errors import InvalidData
from trueloop.training.distributed.processes import Processes


class Metric(Protocol):
    """An object with these two methods, such as those of torchmetrics."""

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add one batch."""
        ...

    def compute(self) -> Any:
        """Return a number (or a 0-d tensor), or a table as a tensor or nested list."""
        ...


@runtime_checkable
class Mergeable(Metric, Protocol):
    """A metric that can be merged with those of other processes.

    Where every metric of a run is one, the processes share the held-out data; otherwise each measures all of it.
    """

    def merge(self, other: Self) -> None:
        """Add the counts of another metric."""
        ...


def merge_across_processes(metric: Metric, processes: Processes) -> Metric:
    """Return, on every process, the metric merged over all of them.

    Args:
        metric: a `Mergeable`; its tensors travel over the host.
        processes: each with a metric of its own.
    """
    own = copy(metric)
    for name, value in vars(own).items():
        if isinstance(value, Tensor):
            setattr(own, name, value.cpu())
    first, *others = cast("list[Mergeable]", processes.all_gather_object(own))
    for other in others:
        first.merge(other)
    return first


class Accuracy:
    """Share of targets that equal the class with the largest output.

    Outputs are ``[N, C, ...]`` scores with the class in dimension 1, or ``[N]`` / ``[N, 1]`` logits of one binary
    class (positive above 0).

    Args:
        ignore_index: targets that do not count.

    Example:
        >>> import torch
        >>> from trueloop import Accuracy
        >>> metric = Accuracy()
        >>> metric.update(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[2.0, 1.0]]), torch.tensor([1]))
        >>> round(metric.compute(), 3)  # over 3 items, not a mean of two batches
        0.667
    """

    def __init__(self, *, ignore_index: int = -100) -> None:
        self._ignored = ignore_index
        self._hits: Tensor | int = 0
        self._count: Tensor | int = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        """Count hits; no host synchronisation."""
        guess, target = predicted_classes(output, target)
        counted = target != self._ignored
        self._hits = self._hits + ((guess == target) & counted).sum()
        self._count = self._count + counted.sum()

    def merge(self, other: Accuracy) -> None:
        """Add another's counts."""
        self._hits, self._count = self._hits + other._hits, self._count + other._count

    def compute(self) -> float:
        """Return hits over counted targets; nan when none was counted."""
        count = int(self._count)
        return int(self._hits) / count if count else float("nan")


class Confusion:
    """How often class i (row) was predicted as class j (column), as a ``[classes][classes]`` table of counts.

    Outputs and targets are those of `Accuracy`.

    Args:
        classes: how many there are.
        ignore_index: targets that do not count.

    Example:
        >>> import torch
        >>> from trueloop import Confusion
        >>> table = Confusion(2)
        >>> table.update(torch.tensor([[2.0, 1.0], [0.0, 3.0], [0.0, 1.0]]), torch.tensor([0, 1, 0]))
        >>> table.compute()
        [[1, 1], [0, 1]]
    """

    def __init__(self, classes: int, *, ignore_index: int = -100) -> None:
        self._classes = classes
        self._ignored = ignore_index
        self._table: Tensor | int = 0
        self._outside: Tensor | int = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add one batch; no host synchronisation beyond the masking."""
        guess, target = predicted_classes(output, target)
        counted = target != self._ignored
        true, guess = target[counted].long(), guess[counted]
        known = (true >= 0) & (true < self._classes) & (guess < self._classes)
        self._outside = self._outside + (~known).sum()
        cells = true[known] * self._classes + guess[known]
        self._table = self._table + torch.bincount(cells, minlength=self._classes**2)

    def merge(self, other: Confusion) -> None:
        """Add another's counts."""
        self._table, self._outside = self._table + other._table, self._outside + other._outside

    def compute(self) -> list[list[int]]:
        """Return the table; all zero when nothing was seen.

        Raises:
            InvalidData: a label or a prediction is outside the table.
        """
        if int(self._outside):
            raise InvalidData(
                f"{int(self._outside)} labels or predictions are outside of {self._classes} classes.",
                fix="Confusion(classes) must cover every label and every output of the model.",
            )
        if isinstance(self._table, int):
            return [[0] * self._classes for _ in range(self._classes)]
        return self._table.reshape(self._classes, self._classes).tolist()


class MeanAbsoluteError:
    """Mean of |output - target| over all elements; both need the same shape."""

    def __init__(self) -> None:
        self._sum: Tensor | float = 0.0
        self._count = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add one batch; no host synchronisation."""
        if output.shape != target.shape:
            raise InvalidData(
                f"The output has shape {tuple(output.shape)}, the target {tuple(target.shape)}.",
                why="They would be broadcast against each other, and the mean taken over the wrong pairs.",
                fix="Make both the same shape.",
            )
        self._sum = self._sum + (output.double() - target.double()).abs().sum()
        self._count += target.numel()

    def merge(self, other: MeanAbsoluteError) -> None:
        """Add another's sums."""
        self._sum, self._count = self._sum + other._sum, self._count + other._count

    def compute(self) -> float:
        """Return the mean; nan when nothing was seen."""
        return float(self._sum) / self._count if self._count else float("nan")


def predicted_classes(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return (predicted class, target), both of the target's shape.

    Raises:
        InvalidData: shapes that cannot be class scores and their targets.
    """
    if target.is_floating_point() and output.shape == target.shape and output.dim() > 1 and output.shape[1] > 1:
        return output.argmax(dim=1), target.argmax(dim=1)  # class probabilities, as CrossEntropyLoss takes them
    if output.dim() == target.dim() + 1 and output.shape[:1] + output.shape[2:] == target.shape and output.shape[1] > 1:
        return output.argmax(dim=1), target if target.is_floating_point() else target.long()  # in uint8, 156 is -100
    if output.shape in (target.shape, (*target.shape, 1)) and (target.dim() < 2 or target.shape[1:] == (1,)):
        return (output.reshape(target.shape) > 0).long(), target.long()
    raise InvalidData(
        f"The output has shape {tuple(output.shape)}, the target {tuple(target.shape)}.",
        fix="Accuracy and Confusion take scores [N, C, ...] with targets [N, ...], or binary logits [N].",
    )
