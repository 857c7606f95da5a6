"""The updates of a run of any length in bounded memory: neighbours are merged once there are many."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trueloop.core.protocols import UpdateRow

MOST: Final = 4096  # rows; four times what a plot can show


class Row(NamedTuple):
    """One update, or several neighbours together."""

    update: int
    """The last of them."""
    updates: int
    loss: float
    """The mean of those that were finite and stepped; nan where none was."""
    loss_low: float
    loss_high: float
    norm: float
    """The mean of those that were finite."""
    norm_low: float
    norm_high: float
    lr: float
    """Of the last of them."""
    wait_s: float
    total_s: float
    examples: int
    skipped: int
    counted: int
    """Updates that the mean loss is of."""


def single(row: UpdateRow) -> Row:
    """Return the row of one update."""
    loss = row.loss if math.isfinite(row.loss) else math.nan
    norm = row.grad_norm if math.isfinite(row.grad_norm) else math.nan
    kept = not row.skipped and not math.isnan(loss)
    mean = loss if kept else math.nan
    return Row(
        row.update, 1, mean, loss, loss, norm, norm, norm, row.lr, row.wait_s, row.total_s, row.examples,
        int(row.skipped), int(kept),
    )  # fmt: skip


@dataclass(slots=True)
class Rows:
    """Rows in order of update, at most `MOST` of them; each stands for ``stride`` updates but for the newest."""

    rows: list[Row] = field(default_factory=list[Row])
    stride: int = 1

    def add(self, row: Row) -> None:
        """Append one update."""
        last = self.rows[-1] if self.rows else None
        if last is not None and last.updates < self.stride:
            self.rows[-1] = _merged(last, row)
            return
        if len(self.rows) >= MOST:
            pairs = zip(self.rows[::2], self.rows[1::2], strict=True)
            self.rows = [_merged(first, second) for first, second in pairs]
            self.stride *= 2
        self.rows.append(row)

    def forget_after(self, update: int) -> None:
        """Drop what a resume has superseded, to the whole row."""
        while self.rows and self.rows[-1].update > update:
            self.rows.pop()


def _merged(first: Row, second: Row) -> Row:
    counted = first.counted + second.counted
    return Row(
        update=second.update,
        updates=first.updates + second.updates,
        loss=_mean(first.loss, first.counted, second.loss, second.counted),
        loss_low=_least(first.loss_low, second.loss_low),
        loss_high=_most(first.loss_high, second.loss_high),
        norm=_mean(first.norm, first.updates, second.norm, second.updates),
        norm_low=_least(first.norm_low, second.norm_low),
        norm_high=_most(first.norm_high, second.norm_high),
        lr=second.lr,
        wait_s=first.wait_s + second.wait_s,
        total_s=first.total_s + second.total_s,
        examples=first.examples + second.examples,
        skipped=first.skipped + second.skipped,
        counted=counted,
    )


def _mean(first: float, weight: int, second: float, other: int) -> float:
    if math.isnan(first) or not weight:
        return second
    if math.isnan(second) or not other:
        return first
    return first + (second - first) * other / (weight + other)


def _least(first: float, second: float) -> float:
    return second if math.isnan(first) or second < first else first


def _most(first: float, second: float) -> float:
    return second if math.isnan(first) or second > first else first
