"""Keep the updates of a run of any length in bounded memory: if there are too many rows, neighbours are merged."""

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trueloop.core.protocols import UpdateRow

MAX_ROWS: Final = 4096  # about ten times the points of a plotted curve


class Row(NamedTuple):
    """One update, or several consecutive updates merged."""

    update: int
    """Number of the last update of this row."""
    updates: int
    """Number of updates in this row."""
    loss: float
    """Mean loss of the finite updates that were not skipped; nan if there are none."""
    loss_low: float
    loss_high: float
    norm: float
    """Mean of the finite gradient norms."""
    norm_low: float
    norm_high: float
    lr: float
    """Learning rate of the last update."""
    wait_s: float
    total_s: float
    examples: int
    skipped: int
    loss_count: int
    """Number of updates in the mean loss."""


def row_of_update(row: UpdateRow) -> Row:
    """Return the row of one update."""
    loss = row.loss if math.isfinite(row.loss) else math.nan
    norm = row.grad_norm if math.isfinite(row.grad_norm) else math.nan
    is_counted = not row.skipped and not math.isnan(loss)
    mean = loss if is_counted else math.nan
    return Row(
        update=row.update,
        updates=1,
        loss=mean,
        loss_low=loss,
        loss_high=loss,
        norm=norm,
        norm_low=norm,
        norm_high=norm,
        lr=row.lr,
        wait_s=row.wait_s,
        total_s=row.total_s,
        examples=row.examples,
        skipped=int(row.skipped),
        loss_count=int(is_counted),
    )


@dataclass(slots=True)
class Rows:
    """At most `MAX_ROWS` rows in order of update; each row merges ``stride`` updates, the newest row maybe fewer."""

    rows: list[Row] = field(default_factory=list[Row])
    stride: int = 1

    def add(self, row: Row) -> None:
        """Append one update."""
        last = self.rows[-1] if self.rows else None
        if last is not None and last.updates < self.stride:
            self.rows[-1] = _merge(last, row)
            return
        if len(self.rows) >= MAX_ROWS:
            pairs = zip(self.rows[::2], self.rows[1::2], strict=True)
            self.rows = [_merge(first, second) for first, second in pairs]
            self.stride *= 2
        self.rows.append(row)

    def drop_after(self, update: int) -> None:
        """Drop the rows that end after ``update``, which a resume has superseded."""
        while self.rows and self.rows[-1].update > update:
            self.rows.pop()


def _merge(first: Row, second: Row) -> Row:
    loss_count = first.loss_count + second.loss_count
    return Row(
        update=second.update,
        updates=first.updates + second.updates,
        loss=_mean(first.loss, first.loss_count, second.loss, second.loss_count),
        loss_low=_min_ignoring_nan(first.loss_low, second.loss_low),
        loss_high=_max_ignoring_nan(first.loss_high, second.loss_high),
        norm=_mean(first.norm, first.updates, second.norm, second.updates),
        norm_low=_min_ignoring_nan(first.norm_low, second.norm_low),
        norm_high=_max_ignoring_nan(first.norm_high, second.norm_high),
        lr=second.lr,
        wait_s=first.wait_s + second.wait_s,
        total_s=first.total_s + second.total_s,
        examples=first.examples + second.examples,
        skipped=first.skipped + second.skipped,
        loss_count=loss_count,
    )


def _mean(first: float, first_weight: int, second: float, second_weight: int) -> float:
    if math.isnan(first) or not first_weight:
        return second
    if math.isnan(second) or not second_weight:
        return first
    return first + (second - first) * second_weight / (first_weight + second_weight)


def _min_ignoring_nan(first: float, second: float) -> float:
    return second if math.isnan(first) or second < first else first


def _max_ignoring_nan(first: float, second: float) -> float:
    return second if math.isnan(first) or second > first else first
