"""Weight decay is stronger than the gradient of the loss, so the weights shrink and the run does not learn.

What you see
    The training loss stays at that of a model that always predicts the mean, and the norm of the weights falls towards
    0. Other learning rates and architectures do not help.

Why it happens
    ``weight_decay`` adds ``weight_decay * weight`` to every gradient. A value of 0.01 to 0.1 is usual for AdamW, which
    multiplies it by the learning rate; in Adam and SGD it competes with the gradient of the loss, where 1e-4 is usual.

Fix
    Use AdamW, or a smaller value.

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)

When this is fine
    - The model learns although its weights shrink.
    - The targets do not depend on the inputs, so that the best weights are 0.

How it is detected
    In a run, the sanitizer compares ``weight_decay`` times the norm of the weights with the norm of the gradients in
    every seventh fully traced update. It reports a median of 0.3 or more, if the norm of the weights fell below half of
    what it was, and if the loss of 30 or more updates did not fall clearly below that of the best constant prediction.
    It does not read weights on a GPU.

References
    Loshchilov and Hutter, 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101
    torch.optim.Adam, https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_float, format_percent
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import OptimizerCreated, Ref, WatchEnded

if TYPE_CHECKING:
    from trueloop.tracing.trackers.learning_progress import LearningProgress

MAX_SHRUNK = 0.5  # of the norm of the weights at the first update
MIN_DECAY_SHARE = 0.3  # of the norm of the gradients; 1e-3 is usual
MIN_READ = 5  # updates of an optimizer whose effect was read

MAX_OPTIMIZERS = 8  # as many as the tracker compares


class Detector(BaseDetector):
    """Compares weight decay with the gradients at the end of a run that does not learn."""

    progress: LearningProgress

    def __init__(self) -> None:
        self._locations: dict[Ref, CodePosition | None] = {}

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record where the weight decay is set."""
        if len(self._locations) < MAX_OPTIMIZERS:
            self._locations[event.optimizer] = event.location

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence for one optimizer."""
        failure = self.progress.failure()
        if failure is None:
            return None
        for optimizer, changes in self.progress.weight_changes().items():
            if len(changes) < MIN_READ:
                continue
            share, shrunk = median(each.decay_share for each in changes), changes[-1].shrunk
            if share >= MIN_DECAY_SHARE and shrunk <= MAX_SHRUNK:
                self.progress.cause_reported = True
                return Evidence(
                    message=f"Weight decay of `{optimizer.name}` is {format_float(share)} times as large as the "
                    f"gradients, and the weights shrank to {format_percent(shrunk)} of their norm. The run does "
                    f"not learn: {failure.losses}.",
                    location=self._locations.get(optimizer),
                    first_update=0,
                )
        return None

    def inconclusive(self) -> str:
        """Return the reason if it is not known whether the run learns."""
        return self.progress.unknown()


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(
        loop.settings["optimizer"] != "adamw", "AdamW keeps weight decay out of the gradient.", optimizer="adam"
    )
    loop.require(not loop.settings["weight_decay"], "There is weight decay already.", weight_decay=0.0)
    loop.require(not loop.settings["batchnorm"], "BatchNorm makes up for small weights.", batchnorm=False)
    line = loop.pieces[Piece.OPTIMIZER].splitlines()[0]
    loop.replace(Piece.OPTIMIZER, line, f"{line.removesuffix(')')}, weight_decay=1.0)")


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 8)
y = 0.1 * (x[:, :1] + x[:, 1:2] * x[:, 2:3])
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=0.5)
for step in range(300):
    rows = torch.randint(512, (64,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LRN003",
    title="Weight decay outweighs the loss",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"weight_decay=0.5": "weight_decay=1e-5"}),
    fix="Use AdamW, or a much smaller weight_decay.",
    detector=Detector,
    inject=inject,
)
