"""Where a run is right now, in constant memory: what a live display shows, gathered from the events as they come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trueloop.core.protocols import Evaluated, RunEvent, RunStarted, UpdateRow, UpdatesDone

RECENT_S = 5.0  # seconds that rates and shares look back: steady to the eye, yet a stall shows at once
SMOOTHED = 30  # updates that the shown loss looks back
TRACE = 128  # points of the loss trace before neighbours are merged


class Progress:
    """Takes events, keeps the numbers a person watches."""

    def __init__(self) -> None:
        self.started: RunStarted | None = None
        self.last: UpdateRow | None = None
        self.done_here = 0
        """Updates this process has done."""
        self.skipped = 0
        self.loss = math.nan
        """Smoothed over the last updates; those that were not finite do not count."""
        self.latest: dict[str, Evaluated] = {}
        """The newest evaluation of each split."""
        self.best: Evaluated | None = None
        self.monitored = "val/loss"
        """The metric that says which evaluation is best."""
        self._loss_weight = 0.0
        self._recent = (0.0, 0.0, 0.0, 0.0)  # seconds, of them waiting, updates, examples; older ones fade
        self._trace: list[float] = []
        self._bucket: list[float] = []
        self._bucket_size = 1
        self._trained = (0.0, 0)  # sum of loss × examples, examples, since the last evaluation
        self._evaluated = False

    def take(self, event: RunEvent) -> None:
        """Take one event in; well under 5 µs per update."""
        if isinstance(event, UpdatesDone):
            if event.rows and self._evaluated:
                self._trained, self._evaluated = (0.0, 0), False
            for row in event.rows:
                self._take_row(row)
        elif isinstance(event, RunStarted):
            self.started = event
            self.monitored = _monitored(event.facts)
        elif isinstance(event, Evaluated):
            self._evaluated = True
            self.latest[event.split] = event
            if event.best and event.split == self.monitored.split("/")[0]:
                self.best = event

    @property
    def update(self) -> int:
        """Updates done in the whole run."""
        if self.last:
            return self.last.update
        return self.started.start_update if self.started else 0

    @property
    def epoch(self) -> int:
        """The epoch in hand, from 1."""
        if self.last:
            return self.last.epoch
        start = self.started
        return 1 + start.start_update * start.epochs // start.updates if start and start.updates else 1

    @property
    def train_loss(self) -> float:
        """Mean over the examples trained on since the evaluation before; nan where there is none."""
        total, examples = self._trained
        return total / examples if examples else math.nan

    @property
    def updates_per_s(self) -> float:
        """Recent rate; 0 before the first update."""
        return self._recent[2] / self._recent[0] if self._recent[0] else 0.0

    @property
    def examples_per_s(self) -> float:
        """Recent rate; 0 before the first update."""
        return self._recent[3] / self._recent[0] if self._recent[0] else 0.0

    @property
    def waiting_share(self) -> float:
        """Recent share of the time spent waiting for data, in [0, 1]."""
        return self._recent[1] / self._recent[0] if self._recent[0] else 0.0

    @property
    def best_value(self) -> float:
        """The monitored metric where it was best; nan before there is one."""
        return self.best.metrics.get(self.monitored.partition("/")[2], math.nan) if self.best else math.nan

    def remaining_s(self, elapsed_s: float) -> float | None:
        """Estimate the seconds left from the pace of this whole process, evaluations included; None = cannot tell."""
        total = self.started.updates if self.started else None
        if total is None or not self.done_here:
            return None
        return max(0, total - self.update) * elapsed_s / self.done_here

    def trace(self, points: int) -> list[float]:
        """Return the loss over the run so far as at most so many means of equal stretches."""
        step = max(1, math.ceil(len(self._trace) / points))
        return [sum(part) / len(part) for k in range(0, len(self._trace), step) if (part := self._trace[k : k + step])]

    def _take_row(self, row: UpdateRow) -> None:
        self.last = row
        self.done_here += 1
        self.skipped += row.skipped
        keep = math.exp(-row.total_s / RECENT_S)
        seconds, waited, updates, examples = self._recent
        self._recent = (
            keep * seconds + row.total_s,
            keep * waited + row.wait_s,
            keep * updates + 1,
            keep * examples + row.examples,
        )
        if row.skipped or not math.isfinite(row.loss):
            return
        self._trained = (self._trained[0] + row.loss * row.examples, self._trained[1] + row.examples)
        self._loss_weight = self._loss_weight * (1 - 1 / SMOOTHED) + 1
        before = 0.0 if math.isnan(self.loss) else self.loss
        self.loss = before + (row.loss - before) / self._loss_weight
        self._bucket.append(row.loss)
        if len(self._bucket) == self._bucket_size:
            self._close_bucket()

    def _close_bucket(self) -> None:
        self._trace.append(sum(self._bucket) / len(self._bucket))
        self._bucket.clear()
        if len(self._trace) == TRACE:
            self._trace = [(a + b) / 2 for a, b in zip(self._trace[::2], self._trace[1::2], strict=True)]
            self._bucket_size *= 2


def _monitored(facts: Mapping[str, Any]) -> str:
    """Find the monitored metric in a run's facts; "val/loss" where they do not say."""
    tree: Any = facts
    for key in ("config", "monitor", "metric"):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, str) and "/" in tree else "val/loss"
