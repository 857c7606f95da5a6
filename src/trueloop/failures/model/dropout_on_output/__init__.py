"""Dropout is applied to the outputs of the model, directly before the loss.

What you see
    The training loss stays high and noisy, and is far above the validation loss. With a rate of 0.5, half of the
    logits, or of the predicted numbers, are 0 in each step, and the others are twice as large.

Why it happens
    Dropout is meant for hidden features, of which the next layer gets many. After the last layer nothing makes up for
    what is missing: the score of the right class is set to 0 as often as any other.

Fix
    Put dropout before the last layer:

        nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4), nn.Dropout(0.5))  # wrong
        nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))  # right

When this is fine
    - Another layer, or an activation and a layer, follows the dropout.
    - Outputs are multiplied by a mask of zeros and ones, to leave positions out.
    - Dropout of the inputs, or with a rate of 0.

How it is detected
    In a run, the sanitizer reports a cross-entropy, binary cross-entropy, squared or absolute error whose input is the
    result of a linear layer or convolution, multiplied by a random mask of 0 and one number above 1, in 3 backward
    passes. The linter reports a dropout layer or function between the last layer and such a loss.

References
    Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014,
    http://jmlr.org/beta/papers/v15/srivastava14a.html
    torch.nn.Dropout, https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.abstract_value import NO_GRAPH
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import VIEWS, layer_before, remove_activation_fix
from trueloop.analysis.queries.possible_values import known_constant
from trueloop.analysis.queries.trained_models import output_layers, trained_models
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event

MIN_TIMES: Final = 3
_LOSSES: Final = frozenset((
    "CrossEntropyLoss", "cross_entropy", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits", "MSELoss", "mse_loss",
    "L1Loss", "l1_loss", "SmoothL1Loss", "smooth_l1_loss", "HuberLoss", "huber_loss",
))  # fmt: skip
_DROPOUT: Final = frozenset(("torch.nn.Dropout", "torch.nn.functional.dropout", "torch.dropout"))


@dataclass(slots=True, kw_only=True, eq=False)
class OutputDropped(Event):
    """The input of a loss is the result of a layer after dropout."""

    probability: float
    """Share of values that are set to 0, from the factor of the others."""
    called_at: CodePosition | None
    """The line of the loss; None = unknown."""


class Detector(BaseDetector):
    """Counts the losses of each line that get a result of dropout."""

    def __init__(self) -> None:
        self._times = Counter[CodePosition | None]()

    def on_output_dropped(self, event: OutputDropped) -> Evidence | None:
        """Return evidence for the third such loss of a line."""
        location = event.called_at or event.location
        self._times[location] += 1
        if self._times[location] != MIN_TIMES:
            return None
        return Evidence(
            message=f"Dropout after the last layer sets {100 * event.probability:.2g} % of the outputs to 0 before "
            "this loss: use it before the last layer.",
            location=location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each dropout between the last layer and a loss."""
    reported: set[int] = set()
    for loss in source.ops(OpKind.LOSS):
        is_known = loss.name.startswith("torch.nn.") and loss.name.rpartition(".")[2] in _LOSSES
        if not is_known or not loss.inputs or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        dropout = loss.inputs[0].origin(VIEWS)
        if dropout is None or dropout.name not in _DROPOUT or id(dropout.node) in reported:
            continue
        position = "0" if dropout.name == "torch.nn.Dropout" else "1"
        rate = dropout.arguments.get("p") or dropout.arguments.get(position)
        if layer_before(dropout) is not None and (rate is None or rate.constant() != 0):
            reported.add(id(dropout.node))
            yield Hit(
                message=f"`{ast.unparse(dropout.node)}` sets outputs of the last layer to 0 before the loss: dropout "
                "belongs before the last layer.",
                node=dropout.node,
                related=((loss.node, "the loss"),),
                fix=remove_activation_fix(source, dropout, "dropout"),
            )
    for call, models in trained_models(source, _LOSSES):
        layers = [layer for each in models for layer in output_layers(source, each)]
        last = layers[0] if all(each and _drops(source, each) for each in layers) else None
        if last is not None and id(last) not in reported:
            reported.add(id(last))
            yield Hit(
                message=f"`{ast.unparse(last)}` sets outputs of the model to 0 before the loss: dropout belongs before "
                "the last layer.",
                node=last,
                related=((call, "the loss"),),
            )


def _drops(source: SourceFile, layer: ast.Call) -> bool:
    """Return True for a dropout layer with another rate than 0."""
    rates = [*layer.args, *(each.value for each in layer.keywords if each.arg == "p")]
    return last_name(layer.func) == "Dropout" and not (rates and known_constant(source, rates[0]) == 0)


RULE = Rule(required_words=("ropout", "oss|entropy", "Linear|Conv"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 10)
classes = x[:, :4].argmax(dim=1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4), nn.Dropout(0.5))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), classes[rows])
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="MDL030",
    title="Dropout is applied to the output",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.Linear(32, 4), nn.Dropout(0.5)": "nn.Dropout(0.5), nn.Linear(32, 4)"}),
    fix="Put dropout before the last layer, not after it.",
    rule=RULE,
    detector=Detector,
)
