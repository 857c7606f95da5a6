"""Metrics that accumulate over items, so that their value does not depend on how the data is split into batches."""

from __future__ import annotations

from copy import copy
from typing import Any, Protocol, Self, cast, runtime_checkable

import torch
from torch import Tensor

from trueloop.core.errors import InvalidData
from trueloop.training.distributed.processes import Processes


class Metric(Protocol):
    """An object with these two methods, such as a metric of torchmetrics."""

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add one batch."""
        ...

    def compute(self) -> Any:
        """Return a number (or a 0-d tensor), or a table as a tensor or nested list."""
        ...


@runtime_checkable
class Mergeable(Metric, Protocol):
    """A metric that can be merged with those of other processes.

    If every metric of a run can, the processes share the held-out data; otherwise each process evaluates all of it.
    """

    def merge(self, other: Self) -> None:
        """Add the sums and counts of another metric to this one."""
        ...


def merge_across_processes(metric: Metric, processes: Processes) -> Metric:
    """Return on every process the metric merged over all processes.

    Args:
        metric: a `Mergeable`; its tensors are sent from the CPU.
        processes: the processes, each of which has such a metric.
    """
    cpu_copy = copy(metric)
    for name, value in vars(cpu_copy).items():
        if isinstance(value, Tensor):
            setattr(cpu_copy, name, value.cpu())
    merged, *others = cast("list[Mergeable]", processes.all_gather_object(cpu_copy))
    for other in others:
        merged.merge(other)
    return merged


class Accuracy:
    """Share of targets that equal the class with the largest output.

    Outputs are ``[N, C, ...]`` scores with the class in dimension 1, or ``[N]`` / ``[N, 1]`` logits of a binary
    classification (a positive logit means class 1).

    Args:
        ignore_index: target value to ignore.

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
        """Add one batch, without waiting for the GPU."""
        predicted, target = predicted_classes(output, target)
        counted = target != self._ignored
        self._hits = self._hits + ((predicted == target) & counted).sum()
        self._count = self._count + counted.sum()

    def merge(self, other: Accuracy) -> None:
        """Add the counts of another metric to this one."""
        self._hits, self._count = self._hits + other._hits, self._count + other._count

    def compute(self) -> float:
        """Return the share of correct predictions among counted targets; nan if there are none."""
        count = int(self._count)
        return int(self._hits) / count if count else float("nan")


class Confusion:
    """How often class i (row) was predicted as class j (column), as a ``[classes][classes]`` table of counts.

    Outputs and targets are those of `Accuracy`.

    Args:
        classes: number of classes.
        ignore_index: target value to ignore.

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
        """Add one batch; waits for the GPU only to mask the targets."""
        predicted, target = predicted_classes(output, target)
        counted = target != self._ignored
        actual, predicted = target[counted].long(), predicted[counted]
        inside = (actual >= 0) & (actual < self._classes) & (predicted < self._classes)
        self._outside = self._outside + (~inside).sum()
        cells = actual[inside] * self._classes + predicted[inside]
        self._table = self._table + torch.bincount(cells, minlength=self._classes**2)

    def merge(self, other: Confusion) -> None:
        """Add the counts of another metric to this one."""
        self._table, self._outside = self._table + other._table, self._outside + other._outside

    def compute(self) -> list[list[int]]:
        """Return the table; all counts are 0 before the first update.

        Raises:
            InvalidData: a label or a prediction is not in [0, classes).
        """
        if int(self._outside):
            raise InvalidData(
                f"{int(self._outside)} labels or predictions are not among the {self._classes} classes.",
                fix="Create Confusion(classes) with at least the number of labels and of the model's outputs.",
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
        """Add one batch, without waiting for the GPU."""
        if output.shape != target.shape:
            raise InvalidData(
                f"The output has shape {tuple(output.shape)}, the target {tuple(target.shape)}.",
                why="They would be broadcast against each other, and the mean computed over the wrong pairs.",
                fix="Make both the same shape.",
            )
        self._sum = self._sum + (output.double() - target.double()).abs().sum()
        self._count += target.numel()

    def merge(self, other: MeanAbsoluteError) -> None:
        """Add the sums of another metric to this one."""
        self._sum, self._count = self._sum + other._sum, self._count + other._count

    def compute(self) -> float:
        """Return the mean; nan before the first update."""
        return float(self._sum) / self._count if self._count else float("nan")


def predicted_classes(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return (predicted class, target), both with one class index per item.

    Raises:
        InvalidData: the shapes are not those of class scores and targets.
    """
    if target.is_floating_point() and output.shape == target.shape and output.dim() > 1 and output.shape[1] > 1:
        return output.argmax(dim=1), target.argmax(dim=1)  # class probabilities, as CrossEntropyLoss takes them
    if output.dim() == target.dim() + 1 and output.shape[:1] + output.shape[2:] == target.shape and output.shape[1] > 1:
        # Compared as uint8, ignore_index = -100 would equal the label 156.
        return output.argmax(dim=1), target if target.is_floating_point() else target.long()
    if output.shape in (target.shape, (*target.shape, 1)) and (target.dim() < 2 or target.shape[1:] == (1,)):
        return (output.reshape(target.shape) > 0).long(), target.long()
    raise InvalidData(
        f"The output has shape {tuple(output.shape)}, the target {tuple(target.shape)}.",
        fix="Accuracy and Confusion take scores [N, C, ...] with targets [N, ...], or binary logits [N].",
    )
