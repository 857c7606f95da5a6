"""Held-out sweeps, as seen from events: a trained model goes through a loader it is not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trueloop.ground.events import (
    NONE,
    BackwardStarted,
    BatchDrawn,
    Event,
    LoaderExhausted,
    LoaderStarted,
    ModelCalled,
    Ref,
    Refs,
    StepTaken,
)

MOMENTS: Final[tuple[type[Event], ...]] = (
    LoaderStarted, BatchDrawn, ModelCalled, BackwardStarted, StepTaken, LoaderExhausted
)  # fmt: skip
"""What `Sweeps.observe` wants to hear."""


@dataclass(slots=True)
class Sweep:
    """One pass over a loader, as far as the newest batches."""

    loader: Ref
    update: int
    calls: list[ModelCalled] = field(default_factory=list[ModelCalled])
    """Of trained models, on its batches; at most 64, without their LIVE fields."""
    batches: int = 0
    trained: bool = False
    """A backward or a step has happened within it: it is no sweep."""

    @property
    def models(self) -> Sequence[Ref]:
        """The models that were called."""
        return list(dict.fromkeys(call.model for call in self.calls))


class Sweeps:
    """Finds sweeps: from the start of a loader to its end without a backward or a step, over a trained model."""

    def __init__(self) -> None:
        self._open: dict[Ref, Sweep] = {}
        self._stepped: Refs = NONE
        self.training: set[Ref] = set()
        """Loaders that some backward's batch came from."""

    def observe(self, event: Any) -> Sweep | None:
        """Take in an event of `MOMENTS`; return a sweep that has just ended."""
        match event:
            case LoaderStarted():
                self._open[event.loader] = Sweep(event.loader, event.update)
            case BatchDrawn():
                if event.loader in self._open:
                    self._open[event.loader].batches += 1
            case ModelCalled():
                self._call(event)
            case BackwardStarted():
                if event.loader is not None:
                    self.training.add(event.loader)
                self._train()
            case StepTaken():
                if not event.parameters <= self._stepped:
                    self._stepped |= event.parameters
                self._train()
            case LoaderExhausted():
                return self._ended(event)
            case _:
                pass
        return None

    def is_trained(self, model: ModelCalled) -> bool:
        """True for a model that an optimizer has stepped."""
        return bool(model.parameters & self._stepped)

    def _call(self, event: ModelCalled) -> None:
        sweep = None if event.loader is None else self._open.get(event.loader)
        if sweep is not None and self.is_trained(event) and not event.recomputed and len(sweep.calls) < 64:
            sweep.calls.append(replace(event, live=None, output=None))

    def _train(self) -> None:
        for sweep in self._open.values():
            sweep.trained = True

    def _ended(self, event: LoaderExhausted) -> Sweep | None:
        sweep = self._open.pop(event.loader, None)
        if sweep is None or sweep.trained or not sweep.calls or event.loader in self.training:
            return None
        return sweep if event.batches_with_backward == 0 else None
