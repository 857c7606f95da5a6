"""The optimizer updates parameters that the model no longer has.

What you see
    The loss does not change at all, or a replaced layer never learns, although the training loop is complete.

Why it happens
    An optimizer updates the tensors that were passed to it. If you build the model again, replace a layer, assign a new
    parameter or copy a model, the model gets new tensors. The old tensors get no gradients, so the step does nothing.

Fix
    Build the optimizer after the last change of the model. To restore weights, use ``load_state_dict``, which changes
    the values in the existing tensors.

        model.fc = nn.Linear(16, 5)
        optimizer = torch.optim.Adam(model.parameters())  # after the change

When this is fine
    - Some layers are used later, or the optimizer belongs to a model that is not trained at the moment.
    - You assign gradients by hand (meta-learning, evolution strategies, float32 copies of the weights).
    - The parameters belong to no module, or to an averaged copy of the model.

How it is detected
    In a run, the sanitizer reports an optimizer if two things are true in three successive steps: some of its
    parameters belong to no model that is called and get no gradients, and parameters of a called model get gradients,
    are in no optimizer and do not change. The linter reports a layer, a parameter or a model that is replaced after the
    optimizer was built, if no new optimizer is built for it. It also reports, as a warning, a loss that is computed
    with a ``deepcopy`` of a model which a loop or function makes, calls and discards, while the step updates another
    model; training with the old optimizer after ``prepare_qat(model)``, which copies the model;
    and a function that assigns a new model, then loads the state of the optimizer that has the old parameters.

References
    torch.optim, constructing it, https://docs.pytorch.org/docs/stable/optim.html#constructing-it
    torch.nn.Module.load_state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
import weakref
from collections.abc import Iterator, Set
from types import CodeType
from typing import Any

from trueloop.analysis.abstract_value import MANAGED, SUBMODULE, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.late_layers import create_later_fix, late_layers
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import first_few
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.optimizer.parameters_stale.resumed_models import resumed_models
from trueloop.failures.optimizer.parameters_stale.trained_copies import quantized_copies, trained_copies
from trueloop.failures.teaching_script import Piece, line_injector
from trueloop.tracing.events import NO_REFS, ModelCalled, Ref, Refs, StepTaken
from trueloop.tracing.parameter_snapshot import snapshot_parameters
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.trackers.gradient_ledger import GradientLedger
from trueloop.tracing.trackers.parameter_ownership import ParameterOwnership
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES = 3


class Detector(BaseDetector):
    """Compares each optimizer's parameters with those of the models that are called."""

    gradients: GradientLedger
    ownership: ParameterOwnership
    windows: AccumulationWindows

    def __init__(self) -> None:
        self._latest: Refs = NO_REFS
        """Parameters of the model that was called last."""
        self._steps = WeakIdDict[Ref, list[int]]()
        """Number of updates before each of the two latest steps of an optimizer."""
        self._stale: weakref.WeakKeyDictionary[Ref, tuple[Refs, int]] = weakref.WeakKeyDictionary()
        """Optimizer -> parameters of no called model, and number of successive steps with these parameters."""
        self._missing: Refs = NO_REFS
        self._values: dict[str, tuple[Any, ...]] = {}
        self._changed: set[str] = set()
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the call of the model."""
        self._latest = event.parameters
        if self._missing and not self._missing.isdisjoint(event.parameters):
            before, self._values = (
                self._values,
                snapshot_parameters(event.live_module, {ref.name for ref in self._missing}),
            )
            self._changed.update(name for name, value in self._values.items() if before.get(name, value) != value)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at the third step of an optimizer with parameters that belong to no called model."""
        steps = self._steps.get(event.optimizer) or self._steps.put(event.optimizer, [event.update, event.update])
        before_last, steps[0], steps[1] = steps[0], steps[1], event.update
        window = self.windows.ended_by(event.optimizer)
        if window.start is None or event.parameters is self._latest:  # the usual case
            return None
        return self._compare(event, window.received, before_last)

    def _compare(self, event: StepTaken, received: Refs, since: int) -> Evidence | None:
        optimizer, in_models = event.optimizer, self.ownership.in_models(since)
        if event.parameters <= in_models or optimizer in self._reported:
            return None
        used = self.gradients.already_used_by(optimizer)
        with_new_gradient = event.with_gradient - used.parameters if used else event.with_gradient
        stale = event.parameters - in_models - with_new_gradient - received
        self._missing = (received & in_models).difference(self.ownership.in_optimizers)
        missing = frozenset(each for each in self._missing if each.name not in self._changed)
        before, times = self._stale.get(optimizer, (NO_REFS, 0))
        if not stale or not missing:
            self._stale.pop(optimizer, None)
            return None
        self._stale[optimizer] = (stale, times + 1 if stale == before else 1)
        if times + 1 < MIN_UPDATES or stale != before or not self._values:
            return None
        self._reported.add(optimizer)
        return self._evidence(event, stale, missing)

    def _evidence(self, event: StepTaken, stale: Refs, missing: Refs) -> Evidence:
        built, names = self.ownership.built_at(event.optimizer), sorted(ref.name for ref in missing)
        replaced = _replacement(missing, {at.code for at in (built, event.location) if at is not None})
        lines = ((replaced, "replaced here"), (built, "the optimizer was built here"), (event.location, "stepped here"))
        location = replaced or built or event.location
        return Evidence(
            message=f"{len(stale)} of the {len(event.parameters)} parameters of this {event.optimizer.kind} belong to "
            f"no model that is called and get no gradients. Meanwhile {first_few(names)} of the model got gradients, "
            "but are in no optimizer and did not change.",
            location=location,
            related=tuple((line, text) for line, text in lines if line is not None and line != location),
        )


def _replacement(parameters: Refs, functions: Set[CodeType]) -> CodePosition | None:
    """Return the line that gave a parameter to its module: the one in the given functions, else the innermost one.

    A line of a constructor, or of a function that builds models, does not say which call of it replaced the model.
    """
    stacks = [ref.registered_at for ref in sorted(parameters, key=lambda ref: ref.name) if ref.registered_at]
    if not stacks:
        return None
    calls = [at for at in stacks[0] if at.code in functions]
    return next(iter(calls or [at for at in stacks[0] if at.code.co_name != "__init__"]), None)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each layer that is replaced after the optimizer was built, and steps for a model that was replaced."""
    for creation in source.ops(OpKind.CREATE):
        if creation.subject.kind is not ValueKind.OPTIMIZER:
            continue
        for change in late_layers(source, creation):
            if change.replaces:
                yield Hit(
                    message="This replaces a layer after the optimizer was built: "
                    f"`{source.text.segment(change.step.node)}` updates the old one.",
                    node=change.operation.node,
                    related=((creation.node, "the optimizer was built here"), (change.step.node, "stepped here")),
                    fix=create_later_fix(source, creation, change.operation),
                )
        yield from _find_stale_models(source, creation)


def _find_stale_models(source: SourceFile, creation: Op) -> Iterator[Hit]:
    """Yield steps of one model after backward passes through another model of the same class that is never updated."""
    optimizer, since = creation.subject, creation.index
    optimized = optimizer.models()
    run = [each for each in source.operations if each.entry_point == creation.entry_point]
    if not optimized or MANAGED in optimizer.facts or any(_sets_by_hand(each) for each in run):
        return
    others = [each.subject for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.OPTIMIZER]
    for step in run:
        if step.kind is not OpKind.STEP or step.subject is not optimizer:
            continue
        between = [each for each in run if since < each.index < step.index]
        roots, since = [each.subject for each in between if each.kind is OpKind.BACKWARD], step.index
        calls = [each.subject for each in between if each.kind is OpKind.MODEL_CALL]
        is_called = any(call.may_alias(model) for call in calls for model in optimized)
        models_of_roots = [_models_of(each) for each in roots]
        models = [each for group in models_of_roots for each in group]
        same_class = all(models_of_roots) and {m.name for m in models} & {m.name for m in optimized} - {""}
        if is_called or not same_class or any(o.covers(each) or each.covers(o) for each in models for o in others):
            continue
        if not any(source.escapes(each, run) for each in (optimizer, *models)):
            yield Hit(
                message=f"`{source.text.segment(step.node)}` updates a model that was not used to compute the loss.",
                node=step.node,
                related=((creation.node, "the optimizer was built here"),),
            )


def _models_of(root: AbstractValue) -> list[AbstractValue]:
    """Return the models that a loss was computed with, without their submodules."""
    models = [each for each in root.ancestors() if each.kind is ValueKind.MODEL]
    inner = {id(part) for each in models for part in each.sources if SUBMODULE not in each.facts}
    return [each for each in models if id(each) not in inner]


def _sets_by_hand(operation: Op) -> bool:
    """Return True if gradients or parameters are set by hand."""
    if operation.kind is OpKind.ACCESS_GRADIENTS or (
        operation.kind is OpKind.CLEAR_GRADIENTS and operation.name == "grad"
    ):
        return True
    subjects: list[AbstractValue] = (
        [operation.subject] if operation.kind in (OpKind.TORCH_CALL, OpKind.STORE_ITEM) else []
    )
    return any(inner.kind is ValueKind.PARAMETERS for each in subjects for inner in each.ancestors())


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, steps of a model of which the loss was computed with a copy, and resumed models."""
    found = list(find(source))
    yield from found
    for each in trained_copies(source):
        if all(hit.node is not each.step for hit in found):
            copy, original = ast.unparse(each.copy), ast.unparse(each.copy.args[0])
            yield Hit(
                message=f"`{ast.unparse(each.step)}` gets no gradient of this loss: it was computed with "
                f"`{copy}`, whose gradients nothing reads, and `{original}` has none.",
                node=each.step,
                related=((each.copy, "the copy"), (each.backward.node, "the backward pass")),
                severity=Severity.WARNING,
            )
    for each in quantized_copies(source):
        yield Hit(
            message=f"`{ast.unparse(each.call)}` returns a copy, whose parameters the optimizer does not hold: the "
            "training after it changes nothing. Build a new optimizer, or pass `inplace=True`.",
            node=each.call,
            related=((each.built, "the optimizer is built here"), (each.used, "training goes on here")),
            severity=Severity.WARNING,
        )
    for each in resumed_models(source):
        yield Hit(
            message=f"`{each.model}` is a new model here, but the optimizer was built for the parameters of the old "
            f"one, which `{ast.unparse(each.load)}` does not change.",
            node=each.new_model,
            related=((each.built, "the optimizer is built here"), (each.load, "and gets only its state here")),
            severity=Severity.WARNING,
        )


RULE = Rule(
    required_words=("torch|deepcopy", "optim|deepcopy", "backward(|prepare_qat(", ".step(|prepare_qat("), find=find_all
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(128, 8), torch.randint(0, 5, (128,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model[2] = nn.Linear(16, 5)
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="OPT002",
    title="The optimizer holds parameters the model no longer has",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD, {"model[2] = nn.Linear(16, 5)\n": "", "optimizer = ": "model[2] = nn.Linear(16, 5)\noptimizer = "}
    ),
    fix="Build the optimizer after the last change of the model's parameters.",
    rule=RULE,
    detector=Detector,
    inject=line_injector(Piece.OPTIMIZER, "model.head = nn.Linear(model.head.in_features, model.head.out_features)"),
)
