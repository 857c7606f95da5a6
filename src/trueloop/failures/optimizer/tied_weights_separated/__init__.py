"""Two layers shared one weight, and one of them got a new one before training: they are trained as two weights.

What you see
    The model has more parameters than intended and learns worse with little data. ``model.decoder.weight is
    model.encoder.weight`` was true after the assignment and is false when training begins.

Why it happens
    ``self.decoder.weight = self.encoder.weight`` gives one parameter two names. An initialisation that assigns a new
    ``nn.Parameter`` to one of the names, or ``load_state_dict(..., assign=True)``, changes this name only: the other
    one keeps the old parameter.

Fix
    Initialise in place, or tie the weights after everything that assigns parameters.

        nn.init.normal_(self.encoder.weight, std=0.02)
        self.decoder.weight = self.encoder.weight

When this is fine
    - The weights are separated on purpose: the new parameter begins as a copy of the shared one.
    - Both names get the same new parameter.

How it is detected
    The sanitizer records which parameters two modules share. It reports a pair of modules that have different
    parameters with different values at the first backward pass, and names the assignment that separated them.

References
    Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017, arXiv:1608.05859
    torch.nn.Module.register_parameter, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from dataclasses import dataclass

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import Event


@dataclass(slots=True, kw_only=True, eq=False)
class TieBroken(Event):
    """RARE. Two modules shared a parameter, and have two different ones at the first backward pass."""

    names: tuple[str, str]
    """The layers with the names of the parameters: "Embedding.weight"."""
    tied_at: CodePosition | None


class Detector(BaseDetector):
    """Reports each pair of modules that no longer share their parameter."""

    def on_tie_broken(self, event: TieBroken) -> Evidence:
        """Return the evidence of one pair."""
        first, second = event.names
        return Evidence(
            message=f"{first} and {second} shared one weight, but this assignment gave one of them a new one: they are "
            "trained as two different weights.",
            location=event.location,
            related=((event.tied_at, "the weights were tied here"),) if event.tied_at else (),
        )


BAD = """
import torch
from torch import nn

torch.manual_seed(0)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8, bias=False)
        self.decoder = nn.Linear(8, 8, bias=False)
        self.decoder.weight = self.encoder.weight
        self.encoder.weight = nn.Parameter(0.1 * torch.randn(8, 8))

    def forward(self, x):
        return self.decoder(torch.relu(self.encoder(x)))


model = Coder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="OPT009",
    title="Tied weights are separated by a later assignment",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "        self.encoder.weight = nn.Parameter(0.1 * torch.randn(8, 8))\n": (
                "        nn.init.normal_(self.encoder.weight, std=0.1)\n"
            )
        },
    ),
    fix="Initialise the shared weight in place, or tie the weights after the assignment.",
    detector=Detector,
)
