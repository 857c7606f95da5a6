"""Remembers the latest forward, backward and step, for when an error has to be explained."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from trueloop.core.findings import CodePosition, SourceLocation
from trueloop.failures.pytorch_error import RecentEvents
from trueloop.tracing.events import BackwardEnded, Event, ModelCalled, Ref, StepTaken, TracingGap


class RecentCalls:
    """Hears the events of a run; keeps the latest of a few of them, as places and numbers."""

    def __init__(self) -> None:
        self.models: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Those that were called."""
        self._latest: Ref | None = None
        self.take: Mapping[type[Event], Callable[[Any], None]] = {
            ModelCalled: self._model,
            BackwardEnded: self._ended,
            StepTaken: self._step_taken,
            TracingGap: self._gap,
        }
        """What takes in an event of each kind; others are not remembered."""
        self._forget()

    def past(self, **more: Any) -> RecentEvents:
        """Return what is remembered, with what else is known."""
        return RecentEvents(
            last_backward=_site(self._backward),
            last_step=_site(self._step),
            step_after_forward=self._stepped,
            forward_after_backward=self._forward_since,
            grad_mode=self._grad_mode,
            inference_mode=self._inference,
            last_forward=_site(self._call),
            **more,
        )

    def _model(self, event: ModelCalled) -> None:
        if event.model is not self._latest:
            self._latest = event.model
            self.models.add(event.model)
        self._call, self._stepped, self._forward_since = event.location, False, True
        self._grad_mode, self._inference = event.grad_mode or bool(self._grad_mode), event.inference_mode

    def _ended(self, event: BackwardEnded) -> None:
        self._backward, self.order, self._forward_since = event.location, event.graph_order, False
        self._grad_mode = None

    def _step_taken(self, event: StepTaken) -> None:
        self._step, self._stepped = event.location, True

    def _gap(self, event: TracingGap) -> None:
        self._forget()

    def _forget(self) -> None:
        self._call: CodePosition | None = None
        self._backward: CodePosition | None = None
        self._step: CodePosition | None = None
        self._grad_mode: bool | None = None
        self._stepped = self._inference = self._forward_since = False
        self.order: int | None = None
        """The number of the latest backward's root among all operations of its thread."""


def _site(place: CodePosition | None) -> SourceLocation | None:
    return place.source_location if place is not None else None
