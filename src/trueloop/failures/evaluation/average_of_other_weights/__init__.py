"""The average of the weights begins from other weights than the model that is trained.

What you see
    After a resume the EMA model is as bad as a random one, and only slowly becomes better; or it never does, because
    the run is too short for the decay. A critic with a target network learns nothing for the first thousands of steps.

Why it happens
    The average is a copy of the model that was made before the checkpoint was loaded, or before the model was
    initialised. It then mixes random weights with the trained ones, and a mixture of two networks is no network.
    ``target = Critic()`` next to ``critic = Critic()`` creates a network with other random weights, too: with a share
    of 0.001 in each update, its values are those of an untrained network for thousands of updates.

Fix
    Load the model first, then make the average; and save the average in the checkpoint too.

        model.load_state_dict(checkpoint["model"])
        ema = EMA(model)
        ema.load_state_dict(checkpoint["ema"])

    Copy a target network when it is created: ``target.load_state_dict(critic.state_dict())``.

When this is fine
    - The average begins as a copy of the trained model.
    - The average begins at zero, and is divided by the sum of its factors.
    - The average is loaded from the checkpoint as well.
    - Both networks are created with the same seed, so that their weights are the same.
    - The first update takes over all weights.

How it is detected
    The sanitizer finds the average as OPT010 does, a few updates after the optimizer was created. It reports one whose
    values hardly correlate with the trained ones, with a cosine of less than 0.4. The linter
    reports a network that a loop over the parameters mixes with another one, of which it takes over at most 20 % each
    time, if both are created by the same constructor, without a seed, and nothing ever copies the weights.

References
    Lillicrap et al., "Continuous control with deep reinforcement learning", 2016, algorithm 1, arXiv:1509.02971
    torch.optim.swa_utils, https://docs.pytorch.org/docs/stable/optim.html
"""

from trueloop.core.findings import Evidence
from trueloop.failures.evaluation.average_of_other_weights.created_apart import RULE
from trueloop.failures.failure import Failure, Severity, changed
from trueloop.failures.optimizer.average_mixed_wrongly.average_detector import SCRIPT, AverageDetector
from trueloop.tracing.averaging_lines import creation_line
from trueloop.tracing.events import AverageKept


class Detector(AverageDetector):
    """Reports averages that do not resemble the trained weights."""

    def on_average_kept(self, event: AverageKept) -> Evidence | None:
        """Return evidence of an average that began elsewhere."""
        self._seen = True
        if event.what != "unrelated":
            return None
        return Evidence(
            message=f"The average `{event.name}` takes {100 * event.share:.3g} % of the trained weights at each "
            f"update, but "
            "it began from other weights than the model: the two do not resemble each other.",
            location=creation_line(event.name) or event.location,
        )


BAD = changed(
    SCRIPT,
    {"import copy\n": "", "copy.deepcopy(model)": "nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))"},
)

FAILURE = Failure(
    code="EVL015",
    title="The average of the weights begins from other weights",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"optimizer = torch": "average.load_state_dict(model.state_dict())\noptimizer = torch"}),
    fix="Make the average after the weights of the model are loaded or initialised.",
    rule=RULE,
    detector=Detector,
)
