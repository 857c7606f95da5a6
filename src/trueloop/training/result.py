"""The result of `Trainer.fit`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The result of a training run."""

    reason: str
    """Why the run ended: "finished", "early_stop", "interrupted" (Ctrl-C) or "preempted" (SIGTERM)."""
    update: int
    """Number of updates done in the run."""
    epochs: int
    """Number of epochs completed."""
    metrics: Mapping[str, float]
    """The latest value of every evaluated metric: {"val/loss": 0.1, "test/accuracy": 0.98}."""
    best_value: float | None
    """Best value of the monitored metric."""
    best_update: int | None
    """Number of updates after which this value was measured."""
    best_checkpoint: Path | None
    """Checkpoint with the best value, if there is one."""
    skipped: int
    """Number of updates that were skipped because their gradient was not finite."""
    seconds: float
    """Duration of this process's part of the run; earlier parts of a resumed run are not included."""
    resumed_from: int
    """Number of updates that were done when this process started."""
    run_dir: Path | None = None
    """The run folder; None if nothing was written."""

    @property
    def unfinished(self) -> bool:
        """True if the run was asked to stop and can be resumed."""
        return self.reason in ("interrupted", "preempted")
