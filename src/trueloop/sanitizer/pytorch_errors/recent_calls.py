"""Records the latest model call, backward pass and step, for the explanation of an error."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.failures.pytorch_error import RecentEvents
from trueloop.tracing.events import BackwardEnded, Event, ModelCalled, Ref, StepTaken, TracingGap


class RecentCalls:
    """Positions and properties of the latest model call, backward pass and step of a run."""

    def __init__(self) -> None:
        self.models: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Models that were called during the run."""
        self._latest: Ref | None = None
        self.handlers: Mapping[type[Event], Callable[[Any], None]] = {
            ModelCalled: self._on_model,
            BackwardEnded: self._on_backward,
            StepTaken: self._on_step,
            TracingGap: self._on_gap,
        }
        """Event type -> its handler; other events are ignored."""
        self._forget()

    def summary(self, **fields: Any) -> RecentEvents:
        """Return the recent events; ``fields`` are the other fields of the result."""
        return RecentEvents(
            last_backward=_source_location(self._backward),
            last_step=_source_location(self._step),
            step_after_forward=self._step_after_forward,
            forward_after_backward=self._forward_after_backward,
            grad_mode=self._grad_mode,
            inference_mode=self._inference_mode,
            last_forward=_source_location(self._call),
            **fields,
        )

    def _on_model(self, event: ModelCalled) -> None:
        if event.model is not self._latest:
            self._latest = event.model
            self.models.add(event.model)
        self._call, self._step_after_forward, self._forward_after_backward = event.location, False, True
        self._grad_mode, self._inference_mode = event.grad_mode or bool(self._grad_mode), event.inference_mode

    def _on_backward(self, event: BackwardEnded) -> None:
        self._backward, self.backward_order, self._forward_after_backward = event.location, event.graph_order, False
        self._grad_mode = None

    def _on_step(self, event: StepTaken) -> None:
        self._step, self._step_after_forward = event.location, True

    def _on_gap(self, event: TracingGap) -> None:
        self._forget()

    def _forget(self) -> None:
        self._call: CodePosition | None = None
        self._backward: CodePosition | None = None
        self._step: CodePosition | None = None
        self._grad_mode: bool | None = None
        """Whether gradients were enabled in some model call since the latest backward pass; None = no call since."""
        self._step_after_forward = self._inference_mode = self._forward_after_backward = False
        self.backward_order: int | None = None
        """Sequence number of the root of the latest backward pass in its thread."""


def _source_location(position: CodePosition | None) -> SourceLocation | None:
    return position.source_location if position is not None else None
