"""One window is one batch: K micro-batches add up sums and counts, and are divided once, at the end.

With sums S_k and counts C_k of micro-batch k, the big batch's gradient is grad(ΣS_k) / ΣC_k. The mean of K means,
grad(ΣS_k/C_k) / K, is the same only where all counts are equal: not in a short last window, not with ragged batches,
not with tokens. So backward runs on S_k, and the division by ΣC_k waits until the window is whole.

Several terms with weights w_j need ratios C_0/C_j before the first backward. They are taken from the window's first
micro-batch and must hold to its end, which they do wherever the terms count the same things; where they do not, the
window is refused rather than trained on wrongly, unless the counts are declared beforehand (`declared`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from trueloop.engines.train.objective import Loss, batch_items
from trueloop.ground.errors import InvalidModel
from trueloop.ground.seams import MicroBatch

Counts = Callable[[Any], Sequence[float]]
"""Batch -> what each term of the objective will count in it, known without running the model."""


_Number = TypeVar("_Number", Tensor | float, Tensor | float | None)


class Window:
    """Sums and counts of the window in hand.

    Args:
        declared: the window's total count per term, where it is known beforehand.
    """

    __slots__ = ("_counts", "_declared", "_ratios", "_sums", "_terms", "examples", "micros")

    def __init__(self, declared: Sequence[float] | None = None) -> None:
        self._declared = declared
        self._terms: Sequence[Loss] = ()
        self._sums: list[Tensor | float] = []
        self._counts: list[Tensor | float | None] = []
        self._ratios: list[Tensor | float] = []
        self.micros: list[MicroBatch] = []
        self.examples = 0

    def add(self, micro: MicroBatch, terms: Sequence[Loss]) -> Tensor:
        """Take one micro-batch and its terms; return the scalar to call backward on.

        Raises:
            InvalidModel: the number of terms changed within the window.
        """
        self.micros.append(micro)
        self.examples += batch_items(micro.data) if micro.indices is None else len(micro.indices)
        if not self._sums:
            self._sums = [_read(term.sum) for term in terms]
            self._counts = [_read(term.count) for term in terms]
            if len(terms) > 1:
                counts: Sequence[Tensor | float | None] = self._declared or self._counts
                self._ratios = [_precise(counts[0]) / _precise(count) for count in counts]
        elif len(terms) != len(self._sums):
            raise InvalidModel(
                f"The objective returned {len(terms)} terms after {len(self._sums)} earlier in the same window.",
                fix="Return the same terms for every batch; a term that does not apply has sum 0 and count 0.",
            )
        else:
            self._sums = [a + _read(term.sum) for a, term in zip(self._sums, terms, strict=True)]
            self._counts = [_plus(a, _read(term.count)) for a, term in zip(self._counts, terms, strict=True)]
        self._terms = terms
        if len(terms) == 1:
            return terms[0].sum if terms[0].weight == 1.0 else terms[0].sum * terms[0].weight
        scaled = [term.sum * (ratio * term.weight) for ratio, term in zip(self._ratios, terms, strict=True)]
        return torch.stack(scaled).sum()

    @property
    def divisor(self) -> Tensor | float:
        """What the window's gradient is divided by: the first term's total count (1 for a plain sum)."""
        return _one(self._declared[0] if self._declared else self._counts[0])

    def loss(self) -> Tensor | float:
        """Return the window's loss: each term's sum over its count, weighted; nan where nothing was counted."""
        parts = zip(self._terms, self._sums, self._counts, strict=True)
        return sum(_ratio(sums, count) * term.weight for term, sums, count in parts)

    def check_ratios(self) -> None:
        """Refuse a window whose terms count different things in different proportions.

        Raises:
            InvalidModel: with the counts and what to do.

        Cost: reads the counts on the host, only with several terms and several micro-batches.
        """
        if len(self._sums) < 2 or len(self.micros) < 2 or self._declared:
            return
        totals = [float(_one(count)) for count in self._counts]
        for j, ratio in enumerate(self._ratios):
            if abs(float(ratio) * totals[j] - totals[0]) > 1e-12 * totals[0]:
                raise InvalidModel(
                    f"Term {j} of the objective counts {totals[j]:g} in this window and term 0 counts {totals[0]:g}, "
                    "which is not their proportion in the window's first micro-batch.",
                    why="Their weights would depend on how the batch is cut up, so the update would not be that "
                    "of the big batch.",
                    fix="Declare the counts beforehand: Trainer(..., counts=lambda batch: (count_0, count_1)).",
                )


def _one(count: Tensor | float | None) -> Tensor | float:
    return 1.0 if count is None else count


def _read(number: _Number) -> _Number:
    """On the CPU the number itself, which costs nothing there; elsewhere the tensor, left where it is."""
    if isinstance(number, Tensor):
        return number.item() if number.is_cpu else number.detach()
    return number


def _ratio(total: Tensor | float, count: Tensor | float | None) -> Tensor | float:
    if count is None:
        return total
    return total / count if isinstance(count, Tensor) or count else math.nan


def _precise(count: Tensor | float | None) -> Tensor | float:
    """The count as float64, in which the ratio of two counts is exact enough for float64 weights."""
    if isinstance(count, Tensor):
        return count.float() if count.device.type == "mps" else count.double()  # MPS has no float64
    return _one(count)


def _plus(count: Tensor | float | None, more: Tensor | float | None) -> Tensor | float | None:
    return None if count is None or more is None else count + more


def open_window(micros: Iterator[MicroBatch], counts: Counts | None) -> tuple[Window, Iterable[MicroBatch]]:
    """Begin a window; where counts are declared, its micro-batches are drawn first so that they can be added up.

    Args:
        micros: the window's micro-batches, not yet drawn.
        counts: declared counts per term, or None.
    """
    if counts is None:
        return Window(), micros
    drawn = list(micros)
    totals = [sum(term) for term in zip(*(counts(micro.data) for micro in drawn), strict=True)]
    return Window(totals), drawn


class Waiting:
    """Seconds spent waiting for data since it was last read."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self) -> float:
        """Return the seconds and start again from 0."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def windows(micro_batches: Iterator[MicroBatch], waiting: Waiting) -> Iterator[Iterator[MicroBatch]]:
    """Group a flat stream into windows, lazily: one micro-batch is in memory at a time.

    Args:
        micro_batches: as a `BatchSource` yields them.
        waiting: told how long each draw took.
    """
    while True:
        started = perf_counter()
        first = next(micro_batches, None)
        waiting.seconds += perf_counter() - started
        if first is None:
            return
        if first.closes_window:
            yield iter((first,))
        else:
            yield _rest_of_window(first, micro_batches, waiting)


def _rest_of_window(first: MicroBatch, others: Iterator[MicroBatch], waiting: Waiting) -> Iterator[MicroBatch]:
    micro: MicroBatch | None = first
    while micro is not None:
        yield micro
        if micro.closes_window:
            return
        started = perf_counter()
        micro = next(others, None)
        waiting.seconds += perf_counter() - started
