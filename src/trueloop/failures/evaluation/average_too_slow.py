"""The moving average of the weights still consists mostly of the weights at the start.

What you see
    The EMA model scores as badly as an untrained one, or as the pretrained model before fine-tuning, while the trained
    model is good. With many more epochs the average catches up.

Why it happens
    With a decay of 0.9999 each update contributes a ten-thousandth. That suits runs of a million updates: after 500
    updates, 95 % of the average are still the random weights of the start. Nothing compares the decay with the length
    of the run.

Fix
    Choose a decay for the length of the run, or let it grow from 0.

        decay = 0.99                                             # averages about the latest 100 updates
        decay = min(0.9999, (1 + update) / (10 + update))        # or a warm-up

When this is fine
    - The average is a teacher or target network, which shall change slowly.
    - The run is only a test of the program.

How it is detected
    The sanitizer finds the average as OPT010 does. It reports one that a constant share of the trained weights moves,
    of which half or more are the weights of the start after the last of at least 100 updates, and that is evaluated,
    but not called in every update.

References
    torch.optim.swa_utils, https://docs.pytorch.org/docs/stable/optim.html
    Morales-Brotons et al., 2024, "Exponential Moving Average of Weights in Deep Learning", arXiv:2411.18704
"""

from typing import Final

from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_percent
from trueloop.failures.failure import Failure, Severity, changed
from trueloop.failures.optimizer.average_mixed_wrongly.average_detector import SCRIPT, AverageDetector
from trueloop.tracing.averaging_lines import averaging_line
from trueloop.tracing.events import AverageKept

MIN_UPDATES: Final = 100
MIN_REST: Final = 0.5  # of the weights at the start


class Detector(AverageDetector):
    """Computes how much of each average is left from the start."""

    def on_average_kept(self, event: AverageKept) -> Evidence | None:
        """Return evidence of an evaluated average that consists mostly of the first weights."""
        self._seen = True
        rest = (1 - event.share) ** event.update
        if event.what != "used" or event.update < MIN_UPDATES or rest < MIN_REST:
            return None
        return Evidence(
            message=f"The average `{event.name}` takes {100 * event.share:.3g} % of the trained weights at each "
            f"update: after {event.update} updates, {format_percent(rest)} of it are still the weights of the start.",
            location=averaging_line(event),
        )


BAD = changed(
    SCRIPT,
    {
        "for epoch in range(6)": "decay = 0.9999\nfor epoch in range(20)",
        "slow.mul_(0.99).add_(fast, alpha=0.01)": "slow.mul_(decay).add_(fast, alpha=1 - decay)",
    },
)

FAILURE = Failure(
    code="EVL029",
    title="The average of the weights is still that of the start",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"decay = 0.9999": "decay = 0.9"}),
    fix="Choose a smaller decay, such as 0.99, or let it grow with the number of updates.",
    detector=Detector,
)
