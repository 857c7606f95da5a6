"""The settings of the BatchNorm layers of a model in training."""

import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

from trueloop.tracing.events import Event, ModelCalled, Ref
from trueloop.tracing.tracker import Tracker


@dataclass(slots=True, kw_only=True, eq=False)
class BatchNormTrained(Event):
    """RARE. A model with BatchNorm layers that track statistics was called in training for the first time."""

    model: Ref
    layers: list[Any]
    """The BatchNorm layers in train mode; must not be stored."""


class BatchNormLayers(Tracker):
    """Emits `BatchNormTrained` at the first call of each model in training."""

    emits: ClassVar[tuple[type[Event], ...]] = (BatchNormTrained,)

    def __init__(self) -> None:
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()

    def on_model_called(self, event: ModelCalled) -> BatchNormTrained | None:
        """Read the settings of the layers."""
        if not event.batchnorm_active or not event.has_graph or event.recomputed or event.model in self._reported:
            return None
        from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

        self._reported.add(event.model)
        layers = [each for each in event.live_module.modules() if isinstance(each, _BatchNorm) and each.training]
        return BatchNormTrained(location=event.location, model=event.model, layers=layers)
