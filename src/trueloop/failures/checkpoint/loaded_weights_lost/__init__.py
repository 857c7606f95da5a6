"""Loaded weights are overwritten, or the model that they were loaded into is not the one that is trained.

What you see
    Fine-tuning starts with the loss of an untrained model and is no better than training from scratch, although the
    checkpoint was found and loaded without an error.

Why it happens
    The weights are initialised after the load (``model.apply(init_weights)``, a second call of the constructor), or the
    checkpoint is loaded into another object of the same class.

Fix
    Build the model, initialise it, load the weights, and then build the optimizer over this model.

        model = Net()
        model.apply(init_weights)
        model.load_state_dict(torch.load("pretrained.pt"))
        optimizer = torch.optim.Adam(model.parameters())

When this is fine
    - You replace a part of the loaded model, such as its head.
    - The loaded model is used too: as a teacher, a reference, or to measure the score before training.
    - The weights are scaled, pruned, averaged, or noise is added to them.
    - The weights are loaded back during training.

How it is detected
    The sanitizer compares the loaded values with those at the first call of the model and at the first update. It
    reports a model whose loaded matrices all have other values that do not correlate with the loaded ones. It also
    reports a loaded model that is never called, if a model with the same shapes is trained from values that are not the
    loaded ones. The linter reports ``model.apply(init_weights)``, and a loop over ``model.modules()`` that initialises
    layers, if the same function has loaded weights into this model, or into a part of it, and has not used it since. It
    also reports a loaded dictionary to which the model's own ``state_dict()`` is added last.

References
    PyTorch tutorial "Saving and Loading Models", https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.checkpoint.loaded_weights_lost.initialised_later import initialised_later
from trueloop.failures.checkpoint.loaded_weights_lost.own_state_last import own_state_last
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.tracing.events import ModelCalled, Ref, StateLoaded, StepStarted, StepTaken, WatchEnded
from trueloop.tracing.parameter_snapshot import first_values

COMPARED: Final = 32  # values of each matrix
MIN_MATRICES: Final = 2
MAX_CORRELATION: Final = 0.4  # of all compared values; pruned, scaled or noisy weights keep more
MIN_UPDATES: Final = 8  # in which a loaded model that is used would have been called
MAX_MODELS: Final = 16

Values = tuple[float, ...]
Shapes = list[tuple[int, ...]]


@dataclass(slots=True)
class _Loaded:
    """A model that weights were loaded into before its first update."""

    name: str
    location: CodePosition | None
    values: Mapping[Ref, Values]
    matrices: Mapping[Ref, Callable[[], Any]]
    """Weak references to the loaded matrices."""
    shapes: Shapes
    is_from_file: bool
    called: bool = False


class _Trained(NamedTuple):
    """Matrices that an optimizer updates for the first time: their shapes, and their values before this update."""

    shapes: Shapes
    values: frozenset[Values]


class Detector(BaseDetector):
    """Compares loaded weights with those at the first update."""

    activated_by = (StateLoaded,)

    def __init__(self) -> None:
        self._loaded: dict[Ref, _Loaded] = {}
        self._stepped: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._trained: list[_Trained] = []
        self._updates = 0

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record the loaded matrices."""
        if event.what != "model" or len(self._loaded) >= MAX_MODELS:
            return
        matrices = {ref: each for ref, each in event.live_parameters.items() if each.ndim > 1}
        values = {ref: first_values(each, COMPARED) for ref, each in matrices.items()}
        if len(matrices) >= MIN_MATRICES and self._stepped.isdisjoint(matrices) and not event.name_match:
            references = {ref: weakref.ref(each) for ref, each in matrices.items()}
            self._loaded[event.target] = _Loaded(
                event.target.name,
                event.location,
                values,
                references,
                _shapes(matrices.values()),
                is_from_file=event.file is not None,
            )

    def on_model_called(self, event: ModelCalled) -> list[Evidence]:
        """Record that a loaded model is used; return evidence if it has other values at its first call."""
        found: list[Evidence] = []
        for target, loaded in list(self._loaded.items()):
            if loaded.called or event.parameters.isdisjoint(loaded.values):
                continue
            loaded.called = True
            tensors = {ref: tensor for ref, each in loaded.matrices.items() if (tensor := each()) is not None}
            if _is_overwritten(loaded.values, {ref: first_values(each, COMPARED) for ref, each in tensors.items()}):
                found.append(_overwritten(loaded))
                del self._loaded[target]
        return found

    def on_step_started(self, event: StepStarted) -> list[Evidence]:
        """Return evidence of loaded models that are trained from other values."""
        new = {ref: each for ref, each in event.live_parameters.items() if ref not in self._stepped}
        if not new:
            return []
        self._stepped.update(new)
        now = {ref: first_values(each, COMPARED) for ref, each in new.items() if each.ndim > 1}
        if len(self._trained) < MAX_MODELS:
            self._trained.append(_Trained(_shapes(new[ref] for ref in now), frozenset(now.values())))
        found = [each for each in self._loaded.values() if _is_overwritten(each.values, now)]
        for target in [target for target, each in self._loaded.items() if not now.keys().isdisjoint(each.values)]:
            del self._loaded[target]
        return [_overwritten(each) for each in found]

    def on_step_taken(self, event: StepTaken) -> None:
        """Count the update."""
        self._updates += 1

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence of loaded models that are not used, while another of the same shapes is trained."""
        if self._updates < MIN_UPDATES:
            return []
        values: set[Values] = set().union(*(each.values for each in self._trained))
        shapes = [each.shapes for each in self._trained]
        shapes.append(sorted(shape for each in shapes for shape in each))  # parts of one model
        return [
            _unused(each)
            for each in self._loaded.values()
            if each.is_from_file
            and not each.called
            and each.shapes in shapes
            and values.isdisjoint(each.values.values())
        ]

    def inconclusive(self) -> str:
        """Return a reason if no update was seen."""
        return "" if self._updates else "no update was traced after the load"


def _shapes(matrices: Iterable[Any]) -> Shapes:
    return sorted(tuple(each.shape) for each in matrices)


def _is_overwritten(loaded: Mapping[Ref, Values], now: Mapping[Ref, Values]) -> bool:
    """Return True if all loaded matrices have other values, and do not correlate with the loaded ones."""
    if not loaded.keys() <= now.keys() or any(loaded[ref] == now[ref] for ref in loaded):
        return False
    pairs = [pair for ref, each in loaded.items() for pair in zip(each, now[ref], strict=True)]
    product = sum(a * b for a, b in pairs)
    norm = (sum(a * a for a, _ in pairs) * sum(b * b for _, b in pairs)) ** 0.5
    return norm > 0 and abs(product) / norm < MAX_CORRELATION


def _overwritten(loaded: _Loaded) -> Evidence:
    return Evidence(
        message=f"The weights that were loaded into {loaded.name} were overwritten before the model was used: none of "
        f"its {len(loaded.values)} matrices still has the loaded values.",
        location=loaded.location,
        fix="Initialise the model before you load the weights, not after.",
    )


def _unused(loaded: _Loaded) -> Evidence:
    return Evidence(
        message=f"The weights were loaded into {loaded.name}, which is never called: the model that is trained is "
        "another one of the same shapes, with other initial values.",
        location=loaded.location,
        fix="Load the weights into the model that the optimizer trains.",
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the initialisations of models whose weights were loaded before."""
    yield from own_state_last(source)
    for found in initialised_later(source):
        yield Hit(
            message=f"The weights loaded into `{found.model}` are overwritten here: its layers are initialised again.",
            node=found.initialisation,
            related=((found.load, "loaded here"),),
        )


RULE = Rule(required_words=("load_state_dict", "torch", ".apply(|init|modules()|.state_dict("), find=find)

_BEGIN = """
import io
import torch
from torch import nn

torch.manual_seed(0)


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


file = io.BytesIO()
torch.save(build().state_dict(), file)
file.seek(0)
model = build()
"""
_LOAD = "model.load_state_dict(torch.load(file))\n"
_INITIALISE = "model.apply(lambda m: nn.init.xavier_uniform_(m.weight) if isinstance(m, nn.Linear) else None)\n"
_END = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="CKP008",
    title="Loaded weights are overwritten or not used",
    severity=Severity.WARNING,
    bad=_BEGIN + _LOAD + _INITIALISE + _END,
    good=_BEGIN + _INITIALISE + _LOAD + _END,
    fix="Build and initialise the model first, then load the weights into it.",
    rule=RULE,
    detector=Detector,
)
