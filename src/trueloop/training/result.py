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
    epochs: int
    metrics: Mapping[str, float]
    """The latest value of every evaluated metric: {"val/loss": 0.1, "test/accuracy": 0.98}."""
    best_value: float | None
    best_update: int | None
    best_checkpoint: Path | None
    skipped: int
    """Number of updates that were skipped because their gradient was not finite."""
    seconds: float
    resumed_from: int
    """Number of updates that were done when this process started."""
    run_dir: Path | None = None
    """The run folder; None if nothing was written."""

    @property
    def unfinished(self) -> bool:
        """True if the run was asked to stop and can be resumed."""
        return self.reason in ("interrupted", "preempted")
