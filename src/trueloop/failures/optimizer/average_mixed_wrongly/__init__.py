"""The average of the weights takes the new weights almost completely, because the two factors are exchanged.

What you see
    The EMA model, the teacher or the target network is practically the trained model itself: its score is as noisy, and
    self-distillation collapses or learns nothing from its teacher.

Why it happens
    A decay of 0.999 belongs to the old average: ``average = 0.999 * average + 0.001 * weights``. With exchanged
    factors, 99.9 % of the average is replaced at every update. ``lerp_`` and ``tau`` of reinforcement learning count
    the other way round: their number is the share of the new weights. An average that begins with a new copy of the
    model in every update is the model, too. And one that keeps all of its old weights grows without limit.

Fix
    Keep most of the average.

        slow.mul_(decay).add_(fast, alpha=1 - decay)
        slow.lerp_(fast, 1 - decay)

When this is fine
    - The weights are copied completely, now and then or always.
    - The decay grows from 0 in a warm-up, so the first averages follow the weights closely.
    - The share of the new weights is a half or less.

How it is detected
    The sanitizer searches the variables of the program for a model or dictionary with the names and shapes of the
    trained parameters. It reports one that moved by the same share of at least 80 %, but not 100 %, towards the trained
    weights after two successive updates. The linter reports a loop over the parameters or the ``state_dict`` of two
    networks that assigns to one of them a weighted sum of both, in which its own weight is at most 0.1; for a variable
    called ``tau`` or ``decay`` whose value is not in the file, a small or large value is assumed. It
    also reports a loop that adds a share of the weights to those of a target network or teacher and keeps all of the
    old ones, and a copy of a model in a loop that is averaged with the model before any other update.

References
    Tarvainen and Valpola, "Mean teachers are better role models", 2017, arXiv:1703.01780
    torch.optim.swa_utils, https://docs.pytorch.org/docs/stable/optim.html
"""

from typing import Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import Failure, Severity, changed
from trueloop.failures.optimizer.average_mixed_wrongly.average_detector import SCRIPT, AverageDetector
from trueloop.failures.optimizer.average_mixed_wrongly.exchanged_factors import RULE
from trueloop.tracing.averaging_lines import averaging_line
from trueloop.tracing.events import AverageKept

MIN_SHARE: Final = 0.8


class Detector(AverageDetector):
    """Checks the share of the new weights in averages."""

    def on_average_kept(self, event: AverageKept) -> Evidence | None:
        """Return evidence of an average that keeps nearly nothing."""
        self._seen = True
        if event.what != "found" or event.share < MIN_SHARE:
            return None
        return Evidence(
            message=f"Each update replaces {100 * event.share:.4g} % of the average `{event.name}` by the new "
            f"weights and keeps {100 * (1 - event.share):.2g} %: the two factors are exchanged.",
            location=averaging_line(event),
        )


FAILURE = Failure(
    code="OPT010",
    title="An average of the weights is mixed the wrong way round",
    severity=Severity.WARNING,
    bad=changed(SCRIPT, {"slow.mul_(0.99).add_(fast, alpha=0.01)": "slow.mul_(0.01).add_(fast, alpha=0.99)"}),
    good=SCRIPT,
    fix="Keep the decay with the average: `slow.mul_(decay).add_(fast, alpha=1 - decay)`.",
    rule=RULE,
    detector=Detector,
)
