"""Records which optimizers and models hold each parameter, and which parameters train without an optimizer."""

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    ModelCalled,
    OptimizerCreated,
    Ref,
    Refs,
    StepTaken,
    TracingGap,
)
from trueloop.tracing.parameter_snapshot import local_name, snapshot_parameters
from trueloop.tracing.tracker import Tracker
from trueloop.tracing.weak_id_dict import WeakIdDict


@dataclass(slots=True)
class OwningOptimizer:
    """An optimizer and its parameters."""

    parameters: Refs
    created: int
    """Number of updates before it was created."""
    built_at: CodePosition | None = None
    latest_step: int | None = None
    """Number of updates before its latest step; None = it has not stepped."""


class ParameterPlace(NamedTuple):
    """Where a model holds a parameter."""

    number: int
    """Number of the model's parameters before it."""
    kind: tuple[str, str, int]
    """The class of its module, its name there, and its number of dimensions."""
    is_beside_layers: bool
    """Whether its module contains other modules with parameters, as for the position table of a transformer."""


@dataclass(slots=True)
class CalledModel:
    """A model that was called and still exists."""

    ref: Ref
    parameters: Refs = NO_REFS
    update: int = 0
    """Number of updates before its latest call."""
    places: dict[str, ParameterPlace] = field(default_factory=dict[str, ParameterPlace])
    """Parameter name -> place of the parameter in the model, in the order of the model."""
    frozen: Refs = NO_REFS
    """Parameters with ``requires_grad=False`` at its first call after an optimizer was built."""
    frozen_at: int = -1
    """Number of optimizers when ``frozen`` was read."""
    values: dict[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """A few values of each parameter that trains without an optimizer, at the latest call."""
    changed: set[str] = field(default_factory=set[str])
    """Names of the parameters in ``values`` that have changed."""

    def name_of(self, parameter: Ref) -> str:
        """Return the name that a parameter has in this model; "" = none."""
        return local_name(self.places, parameter.name)

    def places_of(self, parameters: Refs) -> list[ParameterPlace | None]:
        """Return the places of parameters in the model; None for one that has another name there."""
        return [self.places.get(self.name_of(each)) for each in parameters]


class ParameterOwnership(Tracker):
    """Knows the optimizers and models of each parameter.

    Cost: 1 us for each step and each call, and 0.1 us for each parameter after a change.
    """

    def __init__(self) -> None:
        self.models = WeakIdDict[Any, CalledModel]()
        """Models that were called, by their module."""
        self.optimizers = WeakIdDict[Ref, OwningOptimizer]()
        """Optimizers that were created or have stepped."""
        self.in_optimizers: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Parameters that are or were in some optimizer."""
        self.received: Refs = NO_REFS
        """At a step: the parameters that got gradients since the previous step of any optimizer."""
        self.without_optimizer: Refs = NO_REFS
        """At a step: those of ``received`` that no optimizer ever contained."""
        self.unfrozen: Refs = NO_REFS
        """At a step: those of ``received`` that were frozen when the optimizer was new, and that no optimizer contains
        that could still step: each that contained them stepped only before this one was built."""
        self._created_count = 0
        self._has_frozen = False
        self._receiving: Refs = NO_REFS
        self._outside: Refs = NO_REFS
        """Parameters without an optimizer, and unfrozen ones, at the latest step with new gradients."""
        self._latest_owned: Refs = NO_REFS
        """The latest set of parameters with gradients that were all in optimizers."""

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record an optimizer."""
        self._created_count += 1
        self._record(event.optimizer, event.parameters, event.update).built_at = event.location

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the parameters that got gradients."""
        self._receiving = _union(self._receiving, event.reached_parameters)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard the gradients of windows that were not fully traced."""
        self._receiving = NO_REFS

    def on_model_called(self, event: ModelCalled) -> None:
        """Record a model, the parameters that are frozen, and the values of those that train without an optimizer."""
        model = self.models.get(event.live_module) or self.models.put(event.live_module, CalledModel(event.model))
        model.update = event.update
        if model.parameters is not event.parameters and model.parameters != event.parameters:
            model.parameters, model.frozen_at = event.parameters, -1
            model.places = _places(event.live_module)
            model.values, model.changed = {}, set()
        if model.frozen_at != self._created_count:
            model.frozen_at = self._created_count
            frozen = {name for name, each in event.live_module.named_parameters() if not each.requires_grad}
            model.frozen = frozenset(ref for ref in model.parameters if model.name_of(ref) in frozen)
            self._has_frozen |= bool(frozen)
        if self._outside and not self._outside.isdisjoint(event.parameters):
            before = model.values
            model.values = snapshot_parameters(event.live_module, {ref.name for ref in self._outside})
            model.changed |= {name for name, value in model.values.items() if before.get(name, value) != value}

    def on_step_taken(self, event: StepTaken) -> None:
        """Find the parameters that got gradients and are in no optimizer."""
        optimizer = self._record(event.optimizer, event.parameters, event.update)
        optimizer.latest_step = event.update
        self.received, self._receiving = self._receiving, NO_REFS
        self.without_optimizer = self.unfrozen = NO_REFS
        if self.received is not self._latest_owned:
            self.without_optimizer = self.received.difference(self.in_optimizers)
            if not self.without_optimizer:
                self._latest_owned = self.received
        if self._has_frozen:
            frozen = NO_REFS.union(*(model.frozen for model in self.models.values()))
            self.unfrozen = self.received & frozen
            for other in self.optimizers.values() if self.unfrozen else ():
                if other.latest_step is None or other.latest_step >= optimizer.created:
                    self.unfrozen -= other.parameters
        if self.received:
            self._outside = self.without_optimizer | self.unfrozen

    def built_at(self, optimizer: Ref) -> CodePosition | None:
        """Return the line that built an optimizer; None if it existed before the run was traced."""
        known = self.optimizers.get(optimizer)
        return None if known is None else known.built_at

    def in_models(self, since: int = 0) -> Refs:
        """Return the parameters of the models that were called since a number of updates."""
        return NO_REFS.union(*(model.parameters for model in self.models.values() if model.update >= since))

    def _record(self, optimizer: Ref, parameters: Refs, update: int) -> OwningOptimizer:
        known = self.optimizers.get(optimizer)
        if known is None or known.parameters is not parameters:
            self.in_optimizers.update(parameters)
            if known is None:
                return self.optimizers.put(optimizer, OwningOptimizer(parameters, update))
            known.parameters = parameters
        return known


def _places(model: Any) -> dict[str, ParameterPlace]:
    places: dict[str, ParameterPlace] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        is_beside_layers = bool(own) and any(True for each in module.children() for _ in each.parameters())
        for name, parameter in own.items():
            kind = (type(module).__name__, name, parameter.ndim)
            places[f"{prefix}.{name}" if prefix else name] = ParameterPlace(len(places), kind, is_beside_layers)
    return places


def _union(first: Refs, second: Refs) -> Refs:
    return second if not first or first is second else first | second
