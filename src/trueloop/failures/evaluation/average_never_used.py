"""An average of the weights is updated all the time, and never used.

What you see
    The scores are those of a run without the average, although an EMA is in the code.

Why it happens
    The evaluation, or the file that is saved, uses the trained model. Nothing fails if the average is not used.

Fix
    Evaluate and save the averaged model.

        score = evaluate(ema.module, held_out)
        torch.save(ema.module.state_dict(), "model.pt")

When this is fine
    - The averaged weights are put into the model for the evaluation and taken out again.
    - The average is saved, or returned to be saved elsewhere.
    - The program evaluates nothing: another one will.

How it is detected
    The sanitizer finds the average as OPT010 does. It reports an average that was never called, saved, or loaded into a
    model until the program ended, if the trained model was evaluated. A program may return the average to code that has
    not run, so this is a warning.

References
    torch.optim.swa_utils, https://docs.pytorch.org/docs/stable/optim.html
"""

from trueloop.core.findings import Evidence
from trueloop.failures.failure import Failure, Severity, changed
from trueloop.failures.optimizer.average_mixed_wrongly.average_detector import SCRIPT, AverageDetector
from trueloop.tracing.averaging_lines import averaging_line
from trueloop.tracing.events import AverageKept


class Detector(AverageDetector):
    """Reports averages that were not used until the end."""

    def on_average_kept(self, event: AverageKept) -> Evidence | None:
        """Return evidence of an unused average."""
        self._seen = True
        if event.what != "unused":
            return None
        return Evidence(
            message=f"`{event.name}` is an average of the trained weights that is updated and never used: it was not "
            "called, saved, or loaded into the model, and every evaluation used the trained weights.",
            location=averaging_line(event),
        )


FAILURE = Failure(
    code="EVL013",
    title="An average of the weights is never used",
    severity=Severity.WARNING,
    bad=changed(SCRIPT, {"mse_loss(average(x[200:])": "mse_loss(model(x[200:])"}),
    good=SCRIPT,
    fix="Evaluate and save the averaged model.",
    detector=Detector,
)
