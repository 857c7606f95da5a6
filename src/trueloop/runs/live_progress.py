"""Track the current progress of a run in constant memory, for live displays."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from trueloop.core.protocols import Evaluated, RunEvent, RunStarted, UpdateRow, UpdatesDone

RATE_WINDOW_S = 5.0  # time constant of rates and shares: long enough for steady numbers; a stall shows within seconds
LOSS_SMOOTHING_UPDATES = 30  # time constant of the displayed loss, in updates
MAX_TRACE_POINTS = 128  # points of the loss trace; neighbours are merged when it is full


class _RecentSums(NamedTuple):
    """Sums over the recent updates, which decay exponentially with the time constant `RATE_WINDOW_S`."""

    seconds: float = 0.0
    waiting_s: float = 0.0
    updates: float = 0.0
    examples: float = 0.0


class Progress:
    """Observes the events of a run and keeps the numbers that a live display shows."""

    def __init__(self) -> None:
        self.started: RunStarted | None = None
        self.last: UpdateRow | None = None
        """The latest update."""
        self.process_updates = 0
        """Number of updates done by this process."""
        self.skipped = 0
        """Number of skipped updates of this process."""
        self.loss = math.nan
        """Loss smoothed over the last updates; non-finite losses are ignored."""
        self.latest: dict[str, Evaluated] = {}
        """The newest evaluation of each split."""
        self.best: Evaluated | None = None
        self.monitored_metric = "val/loss"
        """The metric that decides which evaluation is best."""
        self._loss_weight = 0.0
        """Sum of the weights of the losses in `loss`: it grows from 1 to `LOSS_SMOOTHING_UPDATES`."""
        self._recent = _RecentSums()
        self._trace: list[float] = []
        """Mean losses of successive buckets of updates."""
        self._bucket: list[float] = []
        """Losses of the bucket that is not full yet."""
        self._bucket_size = 1
        self._trained = (0.0, 0)  # sum of loss × examples, examples, since the last evaluation
        self._evaluated = False
        """Whether an evaluation followed the latest update."""

    def observe(self, event: RunEvent) -> None:
        """Observe one event. Cost: less than 5 µs per update."""
        if isinstance(event, UpdatesDone):
            if event.rows and self._evaluated:
                self._trained, self._evaluated = (0.0, 0), False
            for row in event.rows:
                self._observe_row(row)
        elif isinstance(event, RunStarted):
            self.started = event
            self.monitored_metric = _monitored_metric(event.facts)
        elif isinstance(event, Evaluated):
            self._evaluated = True
            self.latest[event.split] = event
            if event.best and event.split == self.monitored_metric.split("/")[0]:
                self.best = event

    @property
    def update(self) -> int:
        """Number of updates done in the run, by all its processes."""
        if self.last:
            return self.last.update
        return self.started.start_update if self.started else 0

    @property
    def epoch(self) -> int:
        """The current epoch, from 1."""
        if self.last:
            return self.last.epoch
        start = self.started
        return 1 + start.start_update * start.epochs // start.updates if start and start.updates else 1

    @property
    def train_loss(self) -> float:
        """Mean loss over the training examples since the previous evaluation; nan if there are none."""
        total, examples = self._trained
        return total / examples if examples else math.nan

    @property
    def updates_per_s(self) -> float:
        """Recent updates per second; 0 before the first update."""
        return self._recent.updates / self._recent.seconds if self._recent.seconds else 0.0

    @property
    def examples_per_s(self) -> float:
        """Recent examples per second; 0 before the first update."""
        return self._recent.examples / self._recent.seconds if self._recent.seconds else 0.0

    @property
    def waiting_share(self) -> float:
        """Recent share of the time spent waiting for data, in [0, 1]."""
        return self._recent.waiting_s / self._recent.seconds if self._recent.seconds else 0.0

    @property
    def best_value(self) -> float:
        """The best value of the monitored metric; nan before its first evaluation."""
        return self.best.metrics.get(self.monitored_metric.partition("/")[2], math.nan) if self.best else math.nan

    def remaining_s(self, elapsed_s: float) -> float | None:
        """Estimate the remaining seconds from the pace of this process, evaluations included; None = unknown."""
        total = self.started.updates if self.started else None
        if total is None or not self.process_updates:
            return None
        return max(0, total - self.update) * elapsed_s / self.process_updates

    def loss_trace(self, points: int) -> list[float]:
        """Return the loss over the run so far as at most ``points`` means of equal intervals."""
        step = max(1, math.ceil(len(self._trace) / points))
        return [sum(part) / len(part) for k in range(0, len(self._trace), step) if (part := self._trace[k : k + step])]

    def _observe_row(self, row: UpdateRow) -> None:
        self.last = row
        self.process_updates += 1
        self.skipped += row.skipped
        decay = math.exp(-row.total_s / RATE_WINDOW_S)
        before = self._recent
        self._recent = _RecentSums(
            seconds=decay * before.seconds + row.total_s,
            waiting_s=decay * before.waiting_s + row.wait_s,
            updates=decay * before.updates + 1,
            examples=decay * before.examples + row.examples,
        )
        if row.skipped or not math.isfinite(row.loss):
            return
        self._trained = (self._trained[0] + row.loss * row.examples, self._trained[1] + row.examples)
        self._loss_weight = self._loss_weight * (1 - 1 / LOSS_SMOOTHING_UPDATES) + 1
        smoothed = 0.0 if math.isnan(self.loss) else self.loss
        self.loss = smoothed + (row.loss - smoothed) / self._loss_weight
        self._bucket.append(row.loss)
        if len(self._bucket) == self._bucket_size:
            self._close_bucket()

    def _close_bucket(self) -> None:
        self._trace.append(sum(self._bucket) / len(self._bucket))
        self._bucket.clear()
        if len(self._trace) == MAX_TRACE_POINTS:
            self._trace = [(a + b) / 2 for a, b in zip(self._trace[::2], self._trace[1::2], strict=True)]
            self._bucket_size *= 2


def _monitored_metric(facts: Mapping[str, Any]) -> str:
    """Return the monitored metric in a run's facts; "val/loss" if the facts name none."""
    tree: Any = facts
    for key in ("config", "monitor", "metric"):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, str) and "/" in tree else "val/loss"
