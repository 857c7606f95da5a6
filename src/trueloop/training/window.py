"""Accumulate one window: add the sums and counts of K micro-batches, and divide once, at the end.

With sums S_k and counts C_k of micro-batch k, the big batch's gradient is grad(ΣS_k) / ΣC_k. The mean of K means,
grad(ΣS_k/C_k) / K, equals it only if all counts are equal, which they are not in a short last window, in ragged
batches, or for tokens. So backward runs on S_k, and the division by ΣC_k follows when the window is complete.

Several terms with weights w_j need their counts before the first backward pass. Each term is divided by its count in
the window's first micro-batch; at the end, all terms are divided by the factor by which the counts have grown. If the
terms count the same items, this factor is one number. If it is not, the window raises an error instead of computing a
wrong gradient, unless the counts are declared beforehand (`declared`).

If several processes share the window, sums and counts are summed over all of them, during the last backward pass.
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
        processes: processes that share the window.
        declared: the window's total count of each term over all processes, if known beforehand.
    """

    __slots__ = (
        "_counts", "_declared", "_first_counts", "_processes", "_sums", "_wait_for_totals", "_weights",
        "examples", "micros",
    )  # fmt: skip

    def __init__(self, processes: Processes = SINGLE_PROCESS, declared: Sequence[Tensor | float] | None = None) -> None:
        self._processes = processes
        self._wait_for_totals: Callable[[], list[Tensor | float]] | None = None  # set when the all-reduce starts
        self._declared = declared
        self._weights: list[float] = []  # the terms are not stored: they would keep the output and its graph alive
        self._sums: list[Tensor | float] = []
        self._counts: list[Tensor | float | None] = []
        self._first_counts: Sequence[Tensor | float | None] = ()  # of the first micro-batch; or the declared counts
        self.micros: list[MicroBatch] = []
        self.examples: Tensor | float = 0

    def add(self, micro: MicroBatch, terms: Sequence[Loss]) -> Tensor:
        """Add one micro-batch and its terms; return the scalar to call backward on.

        Raises:
            InvalidModel: the number of terms changed within the window, or differs from the declared counts.
        """
        self.micros.append(micro)
        if is_padding(micro):
            terms = [_zero_padding(term) for term in terms]
        self.examples += count_examples(micro)
        if not self._sums:
            self._sums = [_detach_number(term.sum) for term in terms]
            self._counts = [_detach_number(term.count) for term in terms]
            self._first_counts = self._counts if self._declared is None else self._declared
            if len(terms) > 1 and self._declared is None:
                self._first_counts = self._sum_over_processes(self._counts)
        else:
            pairs = zip(self._sums, terms, strict=False)
            self._sums = [total + _detach_number(term.sum) for total, term in pairs]
            pairs = zip(self._counts, terms, strict=False)
            self._counts = [_add_counts(count, _detach_number(term.count)) for count, term in pairs]
        self._weights = [term.weight for term in terms]
        expected = len(self._first_counts)
        if not len(terms) == len(self._sums) == expected:
            raise InvalidModel(
                f"The objective returned {len(terms)} terms, but {expected} were declared or returned before.",
                fix="Return the same terms for every batch; a term that does not apply has sum 0 and count 0.",
            )
        if len(terms) == 1:
            return terms[0].sum if terms[0].weight == 1.0 else terms[0].sum * terms[0].weight
        pairs = zip(self._first_counts, terms, strict=True)
        return torch.stack([term.sum * (_inverse(count) * term.weight) for count, term in pairs]).sum()

    def start_all_reduce(self, parallel: Parallel) -> None:
        """Start to sum over all processes, after the last forward pass and together with the gradients."""
        if self._processes.size > 1:
            counts = [count for count in self._counts if count is not None]
            self._wait_for_totals = parallel.start_all_reduce([*self._sums, *counts, self.examples])

    def complete(self) -> None:
        """Receive the sums and counts of all processes, after the gradients have been synchronised.

        Raises:
            InvalidModel: see `check_ratios`.
        """
        if self._wait_for_totals is not None:
            *numbers, self.examples = self._wait_for_totals()
            received = iter(numbers)
            self._sums = [next(received) for _ in self._sums]
            self._counts = [None if count is None else next(received) for count in self._counts]
        self.check_ratios()

    def _sum_over_processes(self, counts: Sequence[Tensor | float | None]) -> Sequence[Tensor | float | None]:
        totals = iter(self._processes.all_reduce_sum([count for count in counts if count is not None]))
        return [None if count is None else next(totals) for count in counts]

    @property
    def divisor(self) -> Tensor | float:
        """The divisor of the window's gradient; 0 if all counts are 0.

        With one term, it is the term's total count (1 for a plain sum). With several terms, it is the factor by which
        the counts have grown since the first micro-batch.

        Cost: with several terms and several micro-batches, copies the counts to the CPU, which waits for the GPU.
        """
        if len(self._counts) == 1:
            return _count_or_one(self._counts[0])
        if self._declared is not None:
            return float(any(self._declared))
        if len(self.micros) == 1:
            return self._has_nonzero_count()
        return next((total / first for total, first in self._count_pairs() if first), 0.0)

    def loss(self) -> Tensor | float:
        """Return the window's loss: the weighted sum of the terms' means; nan if all counts are 0."""
        if len(self._sums) == 1:
            return _mean(self._sums[0], self._counts[0], if_zero=math.nan) * self._weights[0]
        terms = zip(self._weights, self._sums, self._counts, strict=True)
        total = sum(_mean(sums, count, if_zero=0.0) * weight for weight, sums, count in terms)
        return _mean(total, self._has_nonzero_count(), if_zero=math.nan)

    def _has_nonzero_count(self) -> Tensor | float:
        """Return 1 if any term's count is not 0, else 0."""
        if any(_count_or_one(count) for count in self._counts if not isinstance(count, Tensor)):
            return 1.0
        tensors = [count for count in self._counts if isinstance(count, Tensor)]
        return to_double((torch.stack(tensors) != 0).any()) if tensors else 0.0

    def check_ratios(self) -> None:
        """Check that the counts of all terms have grown by the same factor.

        Raises:
            InvalidModel: the factors differ; the message has the counts.
        """
        if len(self._sums) < 2 or len(self.micros) < 2 or self._declared is not None:
            return
        growth, pairs = float(self.divisor), self._count_pairs()
        # Sums of fractions are rounded, usually to the 7 digits of float32; sums of integers are exact.
        tolerance = 1e-12 if all(number.is_integer() for pair in pairs for number in pair) else 1e-6
        for index, (total, first) in enumerate(pairs):
            if abs(first * growth - total) > tolerance * total:
                raise InvalidModel(
                    f"Term {index} of the objective counts {first:g} in the first micro-batch of the window and "
                    f"{total:g} in all of them, but the counts of the other terms grow by the factor {growth:g}.",
                    why="The terms' weights would depend on how the batch is split, so the update would not equal that "
                    "of the big batch.",
                    fix="Declare the counts beforehand: Trainer(..., counts=lambda batch: (count_0, count_1)).",
                )

    def _count_pairs(self) -> list[tuple[float, float]]:
        """Return every term's count in the window and in its first micro-batch, as numbers on the CPU."""
        pairs = zip(self._counts, self._first_counts, strict=True)
        return [(float(_count_or_one(total)), float(_count_or_one(first))) for total, first in pairs]


def _count_or_one(count: Tensor | float | None) -> Tensor | float:
    return 1.0 if count is None else count


def _detach_number(number: _Number) -> _Number:
    """Return a Python number for a CPU tensor, which costs no waiting; else a detached tensor on its device."""
    if not isinstance(number, Tensor):
        return number
    if number.is_cpu:
        return number.item()
    return to_double(number.detach()) if is_half(number) else number.detach()


def _mean(total: Tensor | float, count: Tensor | float | None, *, if_zero: float) -> Tensor | float:
    """Return ``total / count``, or ``if_zero`` if the count is 0."""
    if count is None:
        return total
    if isinstance(count, Tensor):
        return torch.where(count == 0, if_zero, total / count)
    return total / count if count else if_zero


def _inverse(count: Tensor | float | None) -> Tensor | float:
    """Return 1 / count in float64, or 0 if the count is 0, because the sum is then 0 as well."""
    if isinstance(count, Tensor):
        return torch.where(count == 0, 0.0, 1 / to_double(count))
    return 1 / _count_or_one(count) if _count_or_one(count) else 0.0


def _add_counts(count: Tensor | float | None, other: Tensor | float | None) -> Tensor | float | None:
    return None if count is None or other is None else count + other


def open_window(
    micros: Iterator[MicroBatch], counts: Counts | None, processes: Processes = SINGLE_PROCESS
) -> tuple[Window, Iterable[MicroBatch]]:
    """Start a window; if counts are declared, all its micro-batches are read first to sum their counts.

    Args:
        micros: the window's micro-batches, not yet read.
        counts: the declared counts of a batch, one per term; or None.
        processes: processes that share the window.
    """
    if counts is None:
        return Window(processes), micros
    batches = list(micros)
    per_batch = [[0.0 if is_padding(micro) else count for count in counts(micro.data)] for micro in batches]
    declared = processes.all_reduce_sum([sum(term_counts) for term_counts in zip(*per_batch, strict=True)])
    return Window(processes, declared), batches


def count_examples(micro: MicroBatch) -> int:
    """Return the number of examples in a micro-batch without padding; 0 if unknown."""
    return (count_items_if_known(micro.data) or 0) if micro.indices is None else len(micro.indices)


def _zero_padding(term: Loss) -> Loss:
    """Set sum and count of a padding micro-batch's term to 0; the sum keeps its graph for backward."""
    return replace(term, sum=term.sum * 0.0, count=None if term.count is None else 0.0)


class DataWait:
    """The time spent waiting for data since the last `reset`, in seconds."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def read(self, micro_batches: Iterator[MicroBatch]) -> MicroBatch | None:
        """Read the next micro-batch and add the time; return None at the end of the epoch."""
        started = perf_counter()
        micro = next(micro_batches, None)
        self.seconds += perf_counter() - started
        return micro

    def reset(self) -> float:
        """Return the seconds and restart from 0."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def windows(micro_batches: Iterator[MicroBatch], data_wait: DataWait) -> Iterator[Iterator[MicroBatch]]:
    """Group a stream of micro-batches into windows, lazily: each micro-batch is read when it is requested.

    Args:
        micro_batches: the micro-batches of an epoch, from a `BatchSource`.
        data_wait: accumulates the time of each read.
    """
    while (first := data_wait.read(micro_batches)) is not None:
        yield _read_window(first, micro_batches, data_wait)


def _read_window(first: MicroBatch, others: Iterator[MicroBatch], data_wait: DataWait) -> Iterator[MicroBatch]:
    micro: MicroBatch | None = first
    while micro is not None:
        yield micro
        micro = None if micro.closes_window else data_wait.read(others)
