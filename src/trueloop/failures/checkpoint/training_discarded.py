"""Training ends with the weights that the model had before the first update.

What you see
    The loss falls and the validation score rises, but the final test, or the saved file, is as bad as an untrained
    model.

Why it happens
    The best weights are copied before training, and the condition that replaces them is never true: it compares with a
    start value that is never beaten (``best_loss = 0``, ``best_acc = 1.0``), or in the wrong direction. The end of the
    program then loads, or evaluates, the copy from before training.

Fix
    Start with a value that any epoch beats, and compare in the direction of the metric.

        best_loss = float("inf")
        if val_loss < best_loss:
            best_loss, best_state = val_loss, copy.deepcopy(model.state_dict())

When this is fine
    - Each trial or fold loads the initial weights and is then trained again.
    - The copy with the initial weights is used during training, as a reference policy or a random target is.
    - Only the last few updates are undone.

How it is detected
    At the first update, the sanitizer stores a few values of each weight. It reports a state that was loaded
    into the trained model after 10 or more updates, is equal to these values, and is not trained again. It also
    reports a copy of the model with these values that is called for the first time after the last update.

References
    PyTorch tutorial "Saving and Loading Models", https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import (
    NO_REFS,
    ModelCalled,
    Ref,
    Refs,
    StateLoaded,
    StepStarted,
    StepTaken,
    TracingGap,
    WatchEnded,
)
from trueloop.tracing.parameter_snapshot import first_values
from trueloop.tracing.step_counts import StepCounts

MIN_UPDATES: Final = 10
MIN_VALUES: Final = 12  # compared values: biases that begin at zero prove nothing


class _Restored(NamedTuple):
    """A model with the weights from before the first update."""

    name: str
    location: CodePosition | None
    updates: int
    loaded: bool


class Detector(BaseDetector):
    """Compares loaded and copied weights with those before the first update."""

    def __init__(self) -> None:
        self._initial: weakref.WeakKeyDictionary[Ref, tuple[float, ...]] = weakref.WeakKeyDictionary()
        """Trained parameter -> its first values before its first update."""
        self._updates = StepCounts()
        self._known: Refs = NO_REFS
        """Parameters of the latest step."""
        self._copies: weakref.WeakKeyDictionary[Ref, _Restored] = weakref.WeakKeyDictionary()
        """Models that were first called after the latest update, with the initial weights of the trained model."""
        self._used_before: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._checked: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Models that were called since the latest update."""
        self._loaded: weakref.WeakKeyDictionary[Ref, _Restored] = weakref.WeakKeyDictionary()
        self._resets: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        """How often the initial weights were loaded into a trained model."""

    def on_step_started(self, event: StepStarted) -> None:
        """Remember the first values of parameters before their first update."""
        if event.parameters is self._known:
            return
        self._known = event.parameters
        for ref, parameter in event.live_parameters.items():
            if ref not in self._initial:
                self._initial[ref] = first_values(parameter)

    def on_step_taken(self, event: StepTaken) -> None:
        """Count the update, and discard what was not the end of the training."""
        self._updates.add(event.parameters)
        for restored in (self._loaded, self._copies):
            if len(restored):
                restored.clear()
        if self._checked:
            self._used_before |= self._checked
            self._checked.clear()

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Compare the weights of a trained model that a state was loaded into with its initial ones."""
        self._loaded.pop(event.target, None)
        if event.what != "model" or not event.live_parameters:
            return
        trained = {ref: each for ref, each in event.live_parameters.items() if ref in self._initial}
        counts = self._updates.counts()
        updates = max((counts.get(ref, 0) for ref in trained), default=0)
        if updates >= MIN_UPDATES and self._equals_initial(trained):
            self._resets[event.target] = self._resets.get(event.target, 0) + 1
            self._loaded[event.target] = _Restored(event.target.name, event.location, updates, loaded=True)

    def on_model_called(self, event: ModelCalled) -> None:
        """Compare the weights of a model that is new after the latest update with the initial ones."""
        model = event.model
        if model in self._used_before or model in self._checked:
            return
        self._checked.add(model)
        if event.has_graph or not event.parameters:
            return
        counts = self._updates.counts()
        updates = max(counts.values(), default=0)
        if updates < MIN_UPDATES or any(ref in counts for ref in event.parameters):
            return
        values = [first_values(each) for each in event.live_module.parameters()]
        initial = sorted(self._initial[ref] for ref in counts if ref in self._initial)
        if _is_proof(values) and sorted(values) == initial:
            self._copies[model] = _Restored(model.name, event.location, updates, loaded=False)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard what was not the end of the training."""
        self._loaded.clear()
        self._copies.clear()

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence of each model that ends with its initial weights."""
        once = [each for target, each in self._loaded.items() if self._resets[target] == 1]  # not for every sample
        return [_evidence(each) for each in (*once, *self._copies.values())]

    def inconclusive(self) -> str:
        """Return a reason if no update was seen."""
        if self._initial and not any(self._initial.values()):
            return "the weights are not on the CPU"
        return "" if self._initial else "no update was traced"

    def _equals_initial(self, parameters: Mapping[Ref, Any]) -> bool:
        values = {ref: first_values(each) for ref, each in parameters.items()}
        return _is_proof(list(values.values())) and all(self._initial[ref] == each for ref, each in values.items())


def _is_proof(values: list[tuple[float, ...]]) -> bool:
    return sum(len(set(each)) for each in values if len(set(each)) > 1) >= MIN_VALUES


def _evidence(restored: _Restored) -> Evidence:
    what = (
        f"The state that was loaded into {restored.name} after {restored.updates} updates"
        if restored.loaded
        else f"{restored.name}, which is used after {restored.updates} updates,"
    )
    return Evidence(
        message=f"{what} has exactly the weights from before the first update: the training is discarded. The best "
        "weights were copied before the training and never replaced.",
        location=restored.location,
    )


BAD = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(240, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best_loss = 0.0
best_state = copy.deepcopy(model.state_dict())
for epoch in range(4):
    for start in range(0, 200, 40):
        loss = nn.functional.mse_loss(model(x[start : start + 40]), y[start : start + 40])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        held_out = nn.functional.mse_loss(model(x[200:]), y[200:]).item()
    if held_out < best_loss:
        best_loss, best_state = held_out, copy.deepcopy(model.state_dict())
model.load_state_dict(best_state)
"""

FAILURE = Failure(
    code="CKP007",
    title="Training ends with the initial weights",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"best_loss = 0.0": 'best_loss = float("inf")'}),
    fix="Start the best value where every epoch beats it: infinity for a loss, 0 for an accuracy.",
    detector=Detector,
)
