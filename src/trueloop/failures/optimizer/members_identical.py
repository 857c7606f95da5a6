"""All members of an ensemble are the same model, because they were trained with the same seed.

What you see
    The ensemble is exactly as good as one of its members, and the spread of their predictions is 0, however far an
    input is from the training data.

Why it happens
    Members differ by their initial weights and the order of their batches. A seed that is set again for each member, or
    copies of one model that are trained on the same batches, makes both equal.

Fix
    Give each member a seed of its own:

        for member in range(5):
            torch.manual_seed(member)
            model = make_model()

When this is fine
    - Models that are trained twice to show that a run is reproducible.
    - Copies that are synchronised, such as the replicas of one model, or the clients of federated learning.
    - Models that have not been trained yet.

How it is detected
    In a run, the sanitizer compares the outputs of models that are called one after the other with the same input and
    without gradients. It reports three of them with different parameters, each trained by more than one step, and with
    equal outputs. Not if the program has loaded a ``state_dict`` since the first update.

References
    Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles", 2017,
    arXiv:1612.01474
    torch.manual_seed, https://docs.pytorch.org/docs/stable/generated/torch.manual_seed.html
"""

from typing import Any, Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import ModelCalled, Refs, StateLoaded, StepTaken
from trueloop.tracing.parameter_snapshot import first_inputs, first_values
from trueloop.tracing.step_counts import StepCounts

MIN_MEMBERS: Final = 3
MIN_STEPS: Final = 2  # of each member
MIN_DISTINCT: Final = 4  # values of an output that is no class, and not saturated
COMPARED: Final = 64  # values of an output


class Detector(BaseDetector):
    """Compares the outputs of trained models that get the same input in a row.

    Cost: 10 us for each call of a model.
    """

    def __init__(self) -> None:
        self._steps = StepCounts()
        """The steps that used the gradient of a parameter."""
        self._input: Any = None
        self._output: tuple[float, ...] = ()
        self._members = list[Refs]()
        """Parameters of the latest models with this input and this output."""
        self._is_judged = False

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Stop comparing: copies that are synchronised have equal outputs."""
        self._is_judged |= event.what == "model" and event.update > 0

    def on_step_taken(self, event: StepTaken) -> None:
        """Count the step."""
        self._steps.add(event.with_gradient)

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Return evidence at the third model with the same output for the same input."""
        if self._is_judged or event.inputs is None or event.dropout_active:
            return None
        values = first_inputs(event)
        key = (tuple(event.inputs.shape), values) if values else None
        output = first_values(event.output, COMPARED)
        if key is None or key != self._input or output != self._output:
            self._input, self._output, self._members = key, output, [event.parameters]
            return None
        if any(each & event.parameters for each in self._members):
            return None
        self._members.append(event.parameters)
        if len(self._members) < MIN_MEMBERS or len({*output} - {0.0, 1.0}) < MIN_DISTINCT:
            return None
        steps = self._steps.counts()
        if not all(any(steps.get(each, 0) >= MIN_STEPS for each in member) for member in self._members):
            return None
        self._is_judged = True
        return Evidence(
            message=f"{len(self._members)} trained models, the latest of them {event.model.name}, return exactly the "
            "same output for the same input: they were trained with the same seed on the same batches.",
            location=event.location,
        )


BAD = """
import torch
from torch import nn

x = torch.randn(160, 6, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)
members = []
for number in range(4):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for rows in torch.randperm(160).split(32):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    members.append(model)
with torch.no_grad():
    spread = torch.stack([model(x) for model in members]).std(0)
print(spread.mean())
"""

FAILURE = Failure(
    code="OPT014",
    title="All members of an ensemble are the same",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.manual_seed(7)": "torch.manual_seed(7 + number)"}),
    fix="Give each member a seed of its own, or do not seed within the loop.",
    detector=Detector,
)
