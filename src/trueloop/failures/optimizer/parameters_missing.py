"""A part of the model gets gradients, but its parameters are in no optimizer.

What you see
    Some layers keep their initial weights. The other layers still learn, so the loss falls, but less than it could.
    Often the layer that does not learn was added after the optimizer was built.

Why it happens
    ``backward()`` computes the gradients of all parameters that the loss depends on. An optimizer updates only the
    parameters that were passed to it. PyTorch does not check whether some parameters are missing.

Fix
    Build the optimizer after the model is complete, or add the new parameters to it.

        model.append(head)
        optimizer = torch.optim.Adam(model.parameters())  # after append

        # or, for an optimizer that exists already:
        optimizer.add_param_group({"params": list(head.parameters())})

    If a layer should not be trained, freeze it with ``layer.requires_grad_(False)``. This also saves time and memory.

When this is fine
    - You do not train the first layers of a pretrained model on purpose, without ``requires_grad_(False)``.
    - You train only a small part of the model on purpose, such as biases, a prompt or adapters.
    - You update the parameters by hand, or with an optimizer that has not made a step yet.
    - The parameters belong to a separate model, such as a discriminator, a perceptual loss or a teacher.
    - You need the gradients for something else, such as a plot of their norms, and do not train the parameters.

How it is detected
    In a run, the sanitizer reports parameters that got gradients in at least four updates, did not change, and were
    never in an optimizer. Most parameters of the model must be in optimizers, and the reported ones must not be only
    the first layers. The linter reports a layer that is added after the optimizer was built, or a later layer of the
    model whose parameters are in no optimizer of the file. A last layer that is fixed on purpose but still requires
    gradients is reported too, so this is a warning.

References
    torch.optim, constructing it, https://docs.pytorch.org/docs/stable/optim.html#constructing-it
    Optimizer.add_param_group,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.late_layers import create_later_fix, late_layers, unoptimized_layers
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import first_few, format_count
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
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
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES = 4  # updates with unused gradients, after which all other optimizers have been built and have stepped


@dataclass(slots=True)
class _ModelState:
    """The parameters of one model that was called."""

    parameters: Refs
    order: dict[str, int]
    """Parameter name -> index of the parameter in the model."""
    not_in_optimizers: Refs | None = None
    """Parameters that are in no optimizer; None = not computed yet."""
    missing: Refs = NO_REFS
    """Parameters that are in no optimizer and got gradients in the latest update."""
    updates: int = 0
    """Number of successive updates with missing parameters."""
    values: dict[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """A few values of each missing parameter, to detect changes."""
    changed: bool = False

    def index_of(self, parameter: Ref) -> int:
        """Return the index of a parameter in the model; -1 if it has another name there."""
        return self.order.get(local_name(self.order, parameter.name), -1)


class Detector(BaseDetector):
    """Compares the parameters that get gradients with the parameters in optimizers."""

    subscribes_to = (OptimizerCreated, ModelCalled, BackwardEnded, StepTaken, TracingGap)

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _ModelState]()
        self._all_in_optimizers = False
        """Whether every parameter of every model is in an optimizer."""
        self._in_optimizers: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._groups = WeakIdDict[Ref, Refs]()
        self._built = WeakIdDict[Ref, CodePosition | None]()
        self._received: Refs = NO_REFS
        self._backward_at: CodePosition | None = None
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()

    def observe(
        self, event: OptimizerCreated | ModelCalled | BackwardEnded | StepTaken | TracingGap
    ) -> Evidence | None:
        """Return evidence at a step that does not update some of a model's parameters."""
        if isinstance(event, StepTaken):
            return self._observe_step(event)
        if isinstance(event, ModelCalled):
            self._observe_call(event)
        elif isinstance(event, BackwardEnded):
            self._received = self._received | event.reached_parameters if self._received else event.reached_parameters
            self._backward_at = event.location
        elif isinstance(event, OptimizerCreated):
            self._record_optimizer(event.optimizer, event.parameters)
            self._built.put(event.optimizer, event.location)
        else:
            self._received = NO_REFS
        return None

    def _record_optimizer(self, optimizer: Ref, parameters: Refs) -> None:
        if self._groups.get(optimizer) is not parameters:
            self._groups.put(optimizer, parameters)
            self._in_optimizers.update(parameters)
            self._all_in_optimizers = False
            for state in self._models.values():
                state.not_in_optimizers = None

    def _observe_call(self, event: ModelCalled) -> None:
        state = self._models.get(event.model)
        if state is None or state.parameters is not event.parameters:
            order = {
                name: index
                for index, (name, _) in enumerate(event.live_module.named_parameters(remove_duplicate=False))
            }
            state = self._models.put(event.model, _ModelState(event.parameters, order))
            self._all_in_optimizers = False
        if state.missing and not state.changed:
            values = snapshot_parameters(event.live_module, {ref.name for ref in state.missing})
            state.changed = any(state.values.get(name, value) != value for name, value in values.items())
            state.values = values

    def _observe_step(self, event: StepTaken) -> Evidence | None:
        self._record_optimizer(event.optimizer, event.parameters)
        received, self._received = self._received, NO_REFS
        if self._all_in_optimizers:  # the usual case
            return None
        self._all_in_optimizers = True
        for model, state in self._models.items():
            if state.not_in_optimizers is None:
                state.not_in_optimizers = state.parameters.difference(self._in_optimizers)
            if not state.not_in_optimizers and not state.missing:
                continue
            self._all_in_optimizers = False
            if state.changed or not received or event.with_gradient.isdisjoint(state.parameters):
                continue
            missing = received & state.not_in_optimizers
            if not missing:
                state.missing, state.updates = NO_REFS, 0
                continue
            state.missing, state.updates = missing, state.updates + 1
            if (
                state.updates >= MIN_UPDATES
                and state.values
                and model not in self._reported
                and self._is_certain(event, state)
            ):
                self._reported.add(model)
                return self._evidence(event, model, state)
        return None

    def _is_certain(self, event: StepTaken, state: _ModelState) -> bool:
        """Return True if most parameters of the model are updated, and some of them precede the missing ones."""
        stepped = state.parameters.intersection(self._in_optimizers)
        first = min((state.index_of(ref) for ref in event.with_gradient & state.parameters), default=-1)
        last_missing = max(state.index_of(ref) for ref in state.missing)
        in_models = NO_REFS.union(*(other.parameters for other in self._models.values()))
        unknown = event.parameters - in_models - event.with_gradient
        return len(stepped) > len(state.missing) and 0 <= first < last_missing and not unknown

    def _evidence(self, event: StepTaken, model: Ref, state: _ModelState) -> Evidence:
        names = sorted(ref.name for ref in state.missing)
        other, label, location = self._built.get(event.optimizer), "the optimizer was built here", event.location
        if other is not None and location == self._backward_at:  # `trainer.fit(...)` runs a library's loop
            other, label, location = location, "the optimizer steps in this call", other
        return Evidence(
            message=f"{format_count(len(names), 'parameter')} of {model.name} got gradients in {state.updates} "
            f"updates but did not change, because no optimizer contains them: {first_few(names)}.",
            location=location,
            related=((other, label),) if other is not None else (),
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the first step of an optimizer that does not contain a layer of its model."""
    for creation in source.ops(OpKind.CREATE):
        if creation.subject.kind is not ValueKind.OPTIMIZER:
            continue
        built = (creation.node, "the optimizer was built here")
        for change in late_layers(source, creation):
            if not change.replaces:
                yield Hit(
                    message=f"`{source.text.segment(change.step.node)}` does not update a layer that was added after "
                    "the optimizer was built: its parameters are in no optimizer.",
                    node=change.step.node,
                    related=(built, (change.operation.node, "added here")),
                    fix=create_later_fix(source, creation, change.operation),
                )
        for omission in unoptimized_layers(source, creation):
            yield Hit(
                message=f"`{source.text.segment(omission.step.node)}` does not update a layer that gets gradients: its "
                "parameters are in no optimizer.",
                node=omission.step.node,
                related=(built, (omission.layer.node, "the layer that is never updated")),
            )


RULE = Rule(required_words=("torch", "optim", "backward(", ".step("), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(bool(loop.settings["hidden"]), "Without hidden layers the model is only a head.", hidden=(16,))
    body_only = "[p for name, p in model.named_parameters() if 'head' not in name]"
    loop.replace(Piece.OPTIMIZER, "model.parameters()", body_only)


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(128, 8), torch.randint(0, 3, (128,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model.append(nn.Linear(16, 3))
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="OPT001",
    title="Parameters are missing from the optimizer",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"model.append(nn.Linear(16, 3))\n": "", "optimizer = ": "model.append(nn.Linear(16, 3))\noptimizer = "}
    ),
    fix="Build the optimizer after the model is complete, or add the parameters with add_param_group.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
