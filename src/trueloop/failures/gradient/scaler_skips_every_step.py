"""GradScaler skips step after step, so the model is not updated.

What you see
    The loss does not move at all with mixed precision, and falls without it. No error is raised.

Why it happens
    ``scaler.step(optimizer)`` skips the step if a gradient is infinite or NaN, and ``scaler.update()`` then halves the
    loss scale. If the forward pass itself overflows in float16, whose largest number is 65504, or contains a NaN, a
    smaller scale does not help: every step is skipped.

Fix
    Find where the forward pass overflows: large inputs or targets, sums, or a loss computed in float16. Normalise
    these values, or compute this part in float32.

        loss = nn.functional.mse_loss(outputs.float(), targets)

When this is fine
    - The first few steps are skipped, until the loss scale is small enough.
    - A step is skipped now and then.

How it is detected
    The sanitizer counts skipped steps of each scaler. It reports 24 skipped steps in a row, which take the default
    scale of 65536 below 0.004, or all steps of a shorter run with at least 8.

References
    torch.amp.GradScaler, https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
"""

from dataclasses import dataclass
from typing import Final

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import LossScaled, Ref, StepSkipped, StepTaken, TracingGap, WatchEnded

MIN_SKIPPED: Final = 24  # an init_scale of 2**24 reaches 1 after 24 halvings
MIN_AT_END: Final = 8


@dataclass(slots=True)
class _Skipped:
    """The skipped steps of one scaler and optimizer since the latest step."""

    optimizer: str
    location: CodePosition | None
    times: int = 0
    scales: frozenset[float | None] = frozenset()


class Detector(BaseDetector):
    """Counts the skipped steps of each scaler since its latest step."""

    activated_by = (StepSkipped,)

    def __init__(self) -> None:
        self._skipped: dict[tuple[Ref, Ref], _Skipped] = {}
        self._stepped: set[tuple[Ref | None, Ref]] = set()
        self._scale: float | None = None

    def on_loss_scaled(self, event: LossScaled) -> None:
        """Record the factor."""
        self._scale = event.scale

    def on_step_taken(self, event: StepTaken) -> None:
        """Record that the scaler makes steps."""
        if event.scaler is not None:
            self._stepped.add((event.scaler, event.optimizer))
            self._skipped.pop((event.scaler, event.optimizer), None)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard what was counted before updates that were not traced."""
        self._skipped.clear()

    def on_step_skipped(self, event: StepSkipped) -> Evidence | None:
        """Count the skipped step; return evidence when too many are skipped."""
        key = event.scaler, event.optimizer
        skipped = self._skipped.setdefault(key, _Skipped(event.optimizer.name, event.location))
        skipped.times += 1
        skipped.scales |= {self._scale}
        return _evidence(skipped, event.update) if skipped.times == MIN_SKIPPED else None

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence of scalers that skipped every step of a short run."""
        return [
            _evidence(each, event.update)
            for key, each in self._skipped.items()
            if MIN_AT_END <= each.times < MIN_SKIPPED and key not in self._stepped
        ]


def _evidence(skipped: _Skipped, updates: int) -> Evidence:
    factors = sorted(each for each in skipped.scales if each is not None)
    tried = f" The loss scale went down to {factors[0]:.3g}, which did not help." if len(factors) > 1 else ""
    return Evidence(
        message=f"GradScaler skipped {skipped.times} steps of {skipped.optimizer} in a row, because gradients were "
        f"infinite or NaN: {f'nothing is trained after update {updates}' if updates else 'the model was never updated'}"
        f".{tried}",
        location=skipped.location,
    )


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = 1e6 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(30):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        answers = model(x)
    loss = ((answers - y.half()) ** 2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

FAILURE = Failure(
    code="GRD014",
    title="GradScaler skips every step",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"((answers - y.half()) ** 2)": "((answers.float() - y / 1e6) ** 2)"}),
    fix="Find where the forward pass overflows in float16, and compute this part in float32 or scale its inputs.",
    detector=Detector,
)
