"""Decide which evaluation is the best so far, and whether to stop early."""

import difflib
import math
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.config import MonitorConfig


class MonitorDecision(NamedTuple):
    """Consequences of one evaluation."""

    best: bool
    """Whether the evaluation is the best so far."""
    stop: bool
    """Whether patience is exhausted."""


class Monitor:
    """Tracks one metric over the evaluations of a run.

    The best value is the best finite one so far. A finite value is an improvement, and the new reference, if it is the
    first or is better than the reference by more than ``min_delta``. The run stops after ``patience`` evaluations in a
    row without improvement.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._config: Final = config
        self._without_improvement = 0
        self._reference: float | None = None
        self.best_value: float | None = None
        """The best value so far; None before the first finite value."""
        self.best_update: int | None = None
        """Number of updates after which the best value was measured."""

    def check(self, splits: Collection[str], names: Collection[str] | None) -> None:
        """Check before training that evaluations will compute the monitored metric.

        Args:
            splits: names of the splits to evaluate: {"val"}.
            names: names of the metrics of each split; None if not known beforehand.

        Raises:
            InvalidConfig: the metric's split or name is not among them.
        """
        split, _, name = self._config.metric.partition("/")
        if not splits and self._config.patience is None:
            return  # nothing to compare, and no early stopping requested
        if split not in splits:
            raise InvalidConfig(
                f"monitor.metric is {self._config.metric!r}, but {split!r} is not evaluated during training.",
                why=f"The evaluated splits are: {', '.join(sorted(splits)) or 'none'}.",
                fix="Give a val set, or monitor a metric of an evaluated split; or leave monitor.patience out.",
            )
        if names is not None and name.split("/")[0] not in names:
            self._monitored_value({f"{split}/{metric}": 0.0 for metric in names})

    def observe(self, metrics: Mapping[str, float], update: int) -> MonitorDecision:
        """Compare one evaluation with the earlier ones.

        Args:
            metrics: all metrics, by their names in the journal: {"val/loss": 0.1, "val/accuracy": 0.97}.
            update: number of updates done when they were measured.

        Raises:
            InvalidConfig: the monitored metric is not among them; the message lists the others.
        """
        value = float(self._monitored_value(metrics))
        best = self._improves(value, self.best_value, delta=0.0)
        if best:
            self.best_value, self.best_update = value, update
        improved = self._improves(value, self._reference, delta=self._config.min_delta)
        if improved:
            self._reference = value
        self._without_improvement = 0 if improved else self._without_improvement + 1
        return MonitorDecision(best=best, stop=self.exhausted)

    @property
    def exhausted(self) -> bool:
        """True if patience is exhausted."""
        patience = self._config.patience
        return patience is not None and self._without_improvement >= patience

    def stop_message(self) -> str:
        """Return a sentence on the metric, the number of evaluations without improvement, and the best value."""
        best = (
            f"the best is {self.best_value:.6g}, after update {self.best_update}"
            if self.best_value is not None
            else "it was never finite"
        )
        return f"{self._config.metric} did not improve in {self._without_improvement} evaluations; {best}."

    def state_dict(self) -> dict[str, Any]:
        """Return the exact state, JSON-ready."""
        return {
            "metric": self._config.metric,
            "mode": self._config.mode,
            "best_value": self.best_value,
            "best_update": self.best_update,
            "reference": self._reference,
            "without_improvement": self._without_improvement,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; patience and min_delta may have changed meanwhile.

        Raises:
            CheckpointError: the state is that of another metric or mode.
        """
        saved, current = (state["metric"], state["mode"]), (self._config.metric, self._config.mode)
        if saved != current:
            raise CheckpointError(
                f"The checkpoint has the {saved[1]} of {saved[0]!r}, but this run the {current[1]} of {current[0]!r}.",
                why="The two cannot be compared, so the best checkpoint would be chosen wrongly.",
                fix=f"Set monitor.metric = {saved[0]!r} and monitor.mode = {saved[1]!r}, or start a new run.",
            )
        self.best_value = state["best_value"]
        self.best_update = state["best_update"]
        self._reference = state["reference"]
        self._without_improvement = state["without_improvement"]

    def _monitored_value(self, metrics: Mapping[str, float]) -> float:
        name = self._config.metric
        if name in metrics:
            return metrics[name]
        close = difflib.get_close_matches(name, metrics, n=1)
        raise InvalidConfig(
            f"monitor.metric is {name!r}, which evaluations do not compute.",
            why=f"They compute: {', '.join(metrics) or 'nothing'}.",
            fix=f"Did you mean {close[0]!r}?" if close else "Set monitor.metric to one of them.",
        )

    def _improves(self, value: float, reference: float | None, *, delta: float) -> bool:
        if not math.isfinite(value):
            return False
        return reference is None or (reference - value if self._config.mode == "min" else value - reference) > delta
