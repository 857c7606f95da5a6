"""One of the inputs is the target itself: a window that is one step too long, or a table with the column to predict.

What you see
    The loss falls close to zero within a few epochs, and the held-out score is as good as the training score. In
    production, where the target is not known yet, the model predicts little better than the latest value.

Why it happens
    ``y = series[t + length - 1]`` is the last step of the window ``series[t : t + length]``, or the column of the
    target was not dropped from the table of features. The model only has to copy one number.

Fix
    Predict the step after the window, and drop the target from the features.

        x, y = series[t : t + length], series[t + length]
        features = table.drop(columns=["price"])

When this is fine
    - The model reconstructs its inputs, as an autoencoder does, or predicts every next token of a sequence.
    - The input has a single feature, and the target is a function of it.
    - A synthetic task tests whether a network finds, or remembers, one of its inputs.
    - A truth table of a few rows has an output that equals one of its inputs.

How it is detected
    The sanitizer compares each feature of a model's input with the target of its loss, if there is one target per
    sample. It reports a feature from which the target follows exactly, as a multiple plus a constant, in all of 64 or
    more different samples. The samples have to be windows that overlap, or the program reads a table: in made-up
    data, the target may be a feature on purpose. The linter reports a window and a target that are cut out of one array
    and stored or returned together, if the target is the last step of the window, and columns of features that include
    the column of the label. The function must not take a later step of the array, nor change the window.

References
    Kaufman et al., "Leakage in Data Mining: Formulation, Detection, and Avoidance", 2012,
    https://doi.org/10.1145/2382577.2382579
    scikit-learn, "Common pitfalls", https://scikit-learn.org/stable/common_pitfalls.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from trueloop.analysis.program_files import parse_files
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import read_source
from trueloop.failures.data.target_among_inputs.window_targets import RULE
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import LossGraphRead, ModelCalled, WatchEnded

if TYPE_CHECKING:
    from trueloop.failures.data.target_among_inputs.copied_columns import CopiedColumns

MAX_LOSSES: Final = 8
_TABLES: Final = re.compile(
    r"read_(csv|table|excel|parquet|sql|json)\b|DataFrame\b|\bcsv\.|loadtxt|genfromtxt|fetch_\w+\("
)
"""Code that reads a table, or makes one."""


class Detector(BaseDetector):
    """Compares the inputs of models with the targets of the next loss."""

    def __init__(self) -> None:
        self._inputs: list[tuple[Any, CodePosition | None]] = []
        """Copies of the inputs since the previous loss, each with the line of the model's call; None = of a line whose
        losses are all decided."""
        self._losses: dict[Any, CopiedColumns] = {}
        self._decided: set[CodePosition | None] = set()
        """These lines."""

    def on_model_called(self, event: ModelCalled) -> None:
        """Copy the inputs of a training call."""
        if not event.has_graph or event.recomputed or len(self._inputs) >= 2:
            return
        if event.location in self._decided:
            self._inputs.append((None, event.location))
            return
        from trueloop.failures.data.target_among_inputs.copied_columns import copy_inputs

        if len(self._losses) < MAX_LOSSES or any(each.is_undecided for each in self._losses.values()):
            copy = copy_inputs(event.inputs)
            if copy is not None:
                self._inputs.append((copy, event.location))

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Compare the targets with the inputs of the only model call."""
        inputs, self._inputs = self._inputs, []
        if len(inputs) != 1 or len(event.live_losses) != 1:
            return
        (rows, called_at), loss = inputs[0], event.live_losses[0]
        if rows is None:
            return
        from trueloop.failures.data.target_among_inputs.copied_columns import CopiedColumns

        key = (event.location, called_at, loss.kind)
        if key not in self._losses and len(self._losses) < MAX_LOSSES:
            self._losses[key] = CopiedColumns(event.location)
        if key in self._losses:
            self._losses[key].add(rows, loss.targets)
            of_line = [each for (_, line, _), each in self._losses.items() if line == called_at]
            if not any(each.is_undecided for each in of_line):
                self._decided.add(called_at)

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Return evidence for each loss whose target is among the inputs."""
        for (_, called_at, _), each in self._losses.items():
            found = each.column()
            if found is not None and (found.overlapping or _reads_tables(each.location)):
                yield Evidence(
                    message=f"The target is among the inputs: it follows exactly from {found.name}, as "
                    f"{found.formula}, in all of {found.samples} different samples.",
                    location=each.location,
                    related=((called_at, "the model gets it here"),) if called_at else (),
                    first_update=0,
                )

    def inconclusive(self) -> str:
        """Return a reason if too few samples were compared."""
        compared = any(each.is_judged for each in self._losses.values())
        return "" if compared else "no loss had one target for each of 64 different samples with two features or more"


def _reads_tables(location: CodePosition | None) -> bool:
    """Return True if the program reads a table: in made-up data, the target may be one of the features on purpose."""
    from trueloop.tracing.running_code import user_modules

    files = parse_files([location.source_location.path], user_modules()) if location else {}
    return any(_TABLES.search(read_source(file)) for file in files or ())


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
series = torch.sin(torch.arange(300) * 0.2) + 0.2 * torch.randn(300)
length = 12
windows = torch.stack([series[t : t + length] for t in range(240)])
targets = torch.stack([series[t + length - 1] for t in range(240)])
model = nn.Sequential(nn.Linear(length, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(240).split(24):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(windows[rows]).squeeze(1), targets[rows])
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT018",
    title="The target is among the inputs",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"series[t + length - 1]": "series[t + length]"}),
    fix="Predict the step after the window, or drop the column of the target from the features.",
    rule=RULE,
    detector=Detector,
)
