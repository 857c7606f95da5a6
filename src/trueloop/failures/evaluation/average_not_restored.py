"""The averaged weights are put into the model for an evaluation, and training continues with them.

What you see
    The loss jumps after each evaluation, momentum no longer fits the weights, and the run is slower than without the
    average: each evaluation throws the newest weights away.

Why it happens
    ``apply_shadow()``, ``ema.copy_to(model.parameters())`` and the like change the trained model. Its own weights are
    only back after ``restore()``.

Fix
    Restore the weights after the evaluation, or evaluate a copy.

        ema.apply_shadow(model)
        score = evaluate(model)
        ema.restore(model)

When this is fine
    - The average is put into the model after the last update.
    - Training continues from the averaged weights on purpose, without an evaluation, as in Lookahead.
    - The evaluation uses a copy of the model.

How it is detected
    The sanitizer finds the average as OPT010 does. It reports a model that was evaluated with exactly the values of the
    average, and still had them at the next backward pass, two times.

References
    torch.optim.swa_utils, https://docs.pytorch.org/docs/stable/optim.html
"""

from typing import Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import Failure, Severity, changed
from trueloop.failures.optimizer.average_mixed_wrongly.average_detector import AverageDetector
from trueloop.tracing.events import AverageKept

MIN_TIMES: Final = 2


class Detector(AverageDetector):
    """Counts the evaluations after which the averaged weights stayed in the model."""

    def on_average_kept(self, event: AverageKept) -> Evidence | None:
        """Return evidence at the second evaluation."""
        self._seen = True
        if event.what != "not restored" or event.times != MIN_TIMES:
            return None
        return Evidence(
            message=f"The model was evaluated with the averaged weights of `{event.name}`, and training continued with "
            f"them, {event.times} times: the weights that the optimizer had reached were not restored.",
            location=event.location,
        )


BAD = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(240, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
average = {name: p.detach().clone() for name, p in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(6):
    for start in range(0, 200, 40):
        loss = nn.functional.mse_loss(model(x[start : start + 40]), y[start : start + 40])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, p in model.named_parameters():
            average[name].mul_(0.9).add_(p.detach(), alpha=0.1)
    backup = copy.deepcopy(model.state_dict())
    model.load_state_dict(average)
    with torch.no_grad():
        print(nn.functional.mse_loss(model(x[200:]), y[200:]).item())
"""

FAILURE = Failure(
    code="EVL014",
    title="Averaged weights are not restored after an evaluation",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"y[200:]).item())\n": "y[200:]).item())\n    model.load_state_dict(backup)\n"}),
    fix="Restore the trained weights after the evaluation, or evaluate a copy of the model.",
    detector=Detector,
)
