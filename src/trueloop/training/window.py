"""Accumulate one window: K micro-batches add sums and counts, which are divided once, at the end.

With sums S_k and counts C_k of micro-batch k, the big batch's gradient is grad(ΣS_k) / ΣC_k. The mean of K means,
grad(ΣS_k/C_k) / K, is the same only where all counts are equal: not in a short last window, not with ragged batches,
not with tokens. So backward runs on S_k, and the division by ΣC_k waits until the window is complete.

Several terms with weights w_j need their counts before the first backward: each is divided by its count in the window's
first micro-batch, and all of them at the end by the growth of the counts, which is one number wherever the terms count
the same items. Where it is not, the window is refused rather than trained on wrongly, unless the counts are declared
beforehand (`declared`).

Where several processes share the window, sums and counts are summed over all of them, once, during the window's last
backward.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from trueloop.core.errors import InvalidModel
from trueloop.core.protocols import MicroBatch, is_padding
from trueloop.training.distributed.parallel import Parallel
from trueloop.training.distributed.processes import SINGLE_PROCESS, Processes
from trueloop.training.objective import Loss, count_items_if_known
from trueloop.training.optimizers.foreach import is_half, to_double

Counts = Callable[[Any], Sequence[float]]
"""Function of a batch that returns the count of each term of the objective without running the model."""


_Number = TypeVar("_Number", Tensor | float, Tensor | float | None)


class Window:
    """Sums and counts of the current window.

    Args:
        processes: that share the window.
        declared: the window's total count of each term over all processes, where known beforehand.
    """

    __slots__ = ("_counts", "_declared", "_first", "_pending", "_processes", "_sums", "_weights", "examples", "micros")

    def __init__(self, processes: Processes = SINGLE_PROCESS, declared: Sequence[Tensor | float] | None = None) -> None:
        self._processes = processes
        self._pending: Callable[[], list[Tensor | float]] | None = None
        self._declared = declared
        self._weights: list[float] = []  # not the terms: they refer to the output and its graph
        self._sums: list[Tensor | float] = []
        self._counts: list[Tensor | float | None] = []
        self._first: Sequence[Tensor | float | None] = ()
        self.micros: list[MicroBatch] = []
        self.examples: Tensor | float = 0

    def add(self, micro: MicroBatch, terms: Sequence[Loss]) -> Tensor:
        """Add one micro-batch and its terms; return the scalar to call backward on.

        Raises:
            InvalidModel: the number of terms changed within the window, or differs from the declared counts.
        """
        self.micros.append(micro)
        if is_padding(micro):
            terms = [_without_count(term) for term in terms]
        self.examples += count_examples(micro)
        if not self._sums:
            self._sums = [_detach_number(term.sum) for term in terms]
            self._counts = [_detach_number(term.count) for term in terms]
            self._first = self._counts if self._declared is None else self._declared
            if len(terms) > 1 and self._declared is None:
                self._first = self._sum_counts(self._counts)
        else:
            self._sums = [a + _detach_number(term.sum) for a, term in zip(self._sums, terms, strict=False)]
            self._counts = [
                _add_counts(a, _detach_number(term.count)) for a, term in zip(self._counts, terms, strict=False)
            ]
        self._weights = [term.weight for term in terms]
        if not len(terms) == len(self._sums) == len(self._first):
            raise InvalidModel(
                f"The objective returned {len(terms)} terms, but {len(self._first)} were declared or returned before.",
                fix="Return the same terms for every batch; a term that does not apply has sum 0 and count 0.",
            )
        if len(terms) == 1:
            return terms[0].sum if terms[0].weight == 1.0 else terms[0].sum * terms[0].weight
        scaled = [term.sum * (_inverse(count) * term.weight) for count, term in zip(self._first, terms, strict=True)]
        return torch.stack(scaled).sum()

    def start_all_reduce(self, parallel: Parallel) -> None:
        """Start to sum over all processes, after the last forward pass and together with the gradients."""
        if self._processes.size > 1:
            counts = [count for count in self._counts if count is not None]
            self._pending = parallel.start_all_reduce([*self._sums, *counts, self.examples])

    def complete(self) -> None:
        """Receive the sums and counts of all processes, after the gradients are synchronised.

        Raises:
            InvalidModel: see `check_ratios`.
        """
        if self._pending is not None:
            *numbers, self.examples = self._pending()
            rest = iter(numbers)
            self._sums = [next(rest) for _ in self._sums]
            self._counts = [None if count is None else next(rest) for count in self._counts]
        self.check_ratios()

    def _sum_counts(self, counts: Sequence[Tensor | float | None]) -> Sequence[Tensor | float | None]:
        totals = iter(self._processes.all_reduce_sum([count for count in counts if count is not None]))
        return [None if count is None else next(totals) for count in counts]

    @property
    def divisor(self) -> Tensor | float:
        """The divisor of the window's gradient; 0 where nothing was counted.

        With one term, its total count (1 for a plain sum). With several, the factor by which their counts grew after
        the first micro-batch.

        Cost: with several terms and several micro-batches, reads the counts on the host.
        """
        if len(self._counts) == 1:
            return _count_or_one(self._counts[0])
        if self._declared is not None:
            return float(any(self._declared))
        if len(self.micros) == 1:
            return self._has_count()
        return next((total / first for total, first in self._growth() if first), 0.0)

    def loss(self) -> Tensor | float:
        """Return the window's loss: each term's sum over its count, weighted; nan where nothing was counted."""
        if len(self._sums) == 1:
            return _mean(self._sums[0], self._counts[0], if_zero=math.nan) * self._weights[0]
        parts = zip(self._weights, self._sums, self._counts, strict=True)
        total = sum(_mean(sums, count, if_zero=0.0) * weight for weight, sums, count in parts)
        return _mean(total, self._has_count(), if_zero=math.nan)

    def _has_count(self) -> Tensor | float:
        """Return 1 where any term has counted something, else 0."""
        if any(_count_or_one(count) for count in self._counts if not isinstance(count, Tensor)):
            return 1.0
        tensors = [count for count in self._counts if isinstance(count, Tensor)]
        return to_double((torch.stack(tensors) != 0).any()) if tensors else 0.0

    def check_ratios(self) -> None:
        """Refuse a window whose terms count different items in different proportions.

        Raises:
            InvalidModel: with the counts and the fix.
        """
        if len(self._sums) < 2 or len(self.micros) < 2 or self._declared is not None:
            return
        growth, pairs = float(self.divisor), self._growth()
        # Sums of fractions are rounded, usually in float32 with 7 digits; integers are exact.
        tolerance = 1e-12 if all(number.is_integer() for pair in pairs for number in pair) else 1e-6
        for j, (total, first) in enumerate(pairs):
            if abs(first * growth - total) > tolerance * total:
                raise InvalidModel(
                    f"Term {j} of the objective counts {first:g} in the window's first micro-batch and {total:g} in "
                    f"all of it, but the other terms' counts grow by {growth:g}.",
                    why="Their weights would depend on how the batch is split, so the update would not equal that of "
                    "the big batch.",
                    fix="Declare the counts beforehand: Trainer(..., counts=lambda batch: (count_0, count_1)).",
                )

    def _growth(self) -> list[tuple[float, float]]:
        """Return (total, first micro-batch's) count of every term, on the host."""
        pairs = zip(self._counts, self._first, strict=True)
        return [(float(_count_or_one(total)), float(_count_or_one(first))) for total, first in pairs]


def _count_or_one(count: Tensor | float | None) -> Tensor | float:
    return 1.0 if count is None else count


def _detach_number(number: _Number) -> _Number:
    """Return a number on the CPU, where reading it is free, or a detached tensor that stays on its device."""
    if not isinstance(number, Tensor):
        return number
    if number.is_cpu:
        return number.item()
    return to_double(number.detach()) if is_half(number) else number.detach()


def _mean(total: Tensor | float, count: Tensor | float | None, *, if_zero: float) -> Tensor | float:
    """Return ``total / count``, or ``if_zero`` where the count is 0."""
    if count is None:
        return total
    if isinstance(count, Tensor):
        return torch.where(count == 0, if_zero, total / count)
    return total / count if count else if_zero


def _inverse(count: Tensor | float | None) -> Tensor | float:
    """Return 1 / count in float64, or 0 where nothing is counted, because the sum is 0 there as well."""
    if isinstance(count, Tensor):
        return torch.where(count == 0, 0.0, 1 / to_double(count))
    return 1 / _count_or_one(count) if _count_or_one(count) else 0.0


def _add_counts(count: Tensor | float | None, more: Tensor | float | None) -> Tensor | float | None:
    return None if count is None or more is None else count + more


def open_window(
    micros: Iterator[MicroBatch], counts: Counts | None, processes: Processes = SINGLE_PROCESS
) -> tuple[Window, Iterable[MicroBatch]]:
    """Start a window; where counts are declared, its micro-batches are read first so that the counts can be summed.

    Args:
        micros: the window's micro-batches, not yet read.
        counts: declared counts per term, or None.
        processes: that share the window.
    """
    if counts is None:
        return Window(processes), micros
    batches = list(micros)
    each = [[0.0 if is_padding(micro) else count for count in counts(micro.data)] for micro in batches]
    return Window(processes, processes.all_reduce_sum([sum(term) for term in zip(*each, strict=True)])), batches


def count_examples(micro: MicroBatch) -> int:
    """Return how many examples of a micro-batch count; 0 where unknown."""
    return (count_items_if_known(micro.data) or 0) if micro.indices is None else len(micro.indices)


def _without_count(term: Loss) -> Loss:
    """Return the term of a padding micro-batch: it runs through the graph and contributes nothing."""
    return replace(term, sum=term.sum * 0.0, count=None if term.count is None else 0.0)


class DataWait:
    """Seconds spent waiting for data since the last `reset`."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def reset(self) -> float:
        """Return the seconds and restart from 0."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def windows(micro_batches: Iterator[MicroBatch], data_wait: DataWait) -> Iterator[Iterator[MicroBatch]]:
    """Group a flat stream into windows, lazily: nothing is read before it is requested.

    Args:
        micro_batches: as a `BatchSource` yields them.
        data_wait: accumulates the time of each read.
    """
    while True:
        started = perf_counter()
        first = next(micro_batches, None)
        data_wait.seconds += perf_counter() - started
        if first is None:
            return
        if first.closes_window:
            yield iter((first,))
        else:
            yield _rest_of_window(first, micro_batches, data_wait)


def _rest_of_window(first: MicroBatch, others: Iterator[MicroBatch], data_wait: DataWait) -> Iterator[MicroBatch]:
    micro: MicroBatch | None = first
    while micro is not None:
        yield micro
        if micro.closes_window:
            return
        started = perf_counter()
        micro = next(others, None)
        data_wait.seconds += perf_counter() - started
