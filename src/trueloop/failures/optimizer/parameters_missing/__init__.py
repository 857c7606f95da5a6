"""A part of the model gets gradients, but its parameters are in no optimizer.

What you see
    Some layers keep their initial weights. The other layers still learn, so the loss falls, but less than it could.
    Often the layer that does not learn was added or unfrozen after the optimizer was built.

Why it happens
    ``backward()`` computes the gradients of all parameters that the loss depends on. An optimizer updates only the
    parameters that were passed to it. PyTorch does not check whether some parameters are missing.

Fix
    Build the optimizer after the model is complete, or add the new parameters to it.

        model.append(head)
        optimizer = torch.optim.Adam(model.parameters())  # after append

        # or, for an optimizer that exists already:
        optimizer.add_param_group({"params": list(head.parameters())})

    After you unfreeze layers, add them in the same way if the optimizer was built without them.

    If a layer should not be trained, freeze it with ``layer.requires_grad_(False)``. This also saves time and memory.

When this is fine
    - You deliberately leave the first layers of a pretrained model out of the optimizer, without freezing them.
    - You train only a small part of the model on purpose, such as biases, a prompt or adapters.
    - You update the parameters by hand, or with an optimizer that has not made a step yet.
    - The parameters belong to a separate model, such as a discriminator, a perceptual loss or a teacher.
    - Data that require gradients without need, or for derivatives by ``autograd.grad``.
    - A group is passed only under a condition, added later by ``add_param_group``, or returned to the caller.
    - You need the gradients for something else, such as a plot of their norms, and do not train the parameters.

How it is detected
    In a run, the sanitizer reports parameters that got gradients in at least four updates, did not change, and were
    never in an optimizer. Most parameters of the model must be in optimizers (a third if they lie before and behind
    the reported ones), and the reported ones must not be only the first layers. They may be if the optimizer has a
    group without parameters, as from a generator that was already used up, or if its groups divide layers, such as
    into weights and biases, and no group has the kind of the reported parameters, such as embeddings. A full model
    whose parameters are in no optimizer is reported if two optimizers have the same parameters. Parameters next to
    layers, such as a position table, do not count as first layers. A module that is called with the output of a
    trained model is reported if its parameters are in no optimizer, were not loaded, and are no weights of PyTorch's
    layers: a loss with proxies, centers or a temperature, or a head with a matrix of its own. It also reports
    parameters that were frozen when the optimizer was new and got gradients later, if every optimizer that contains
    them made its last step before this one was built. The linter reports a layer that is added after the optimizer
    was built, a layer that comes after a trained layer in the model and is in no optimizer of the file, or a loss or
    head of its own, such as ArcFace with its class centers, that is called with the output of a trained model. A last
    layer that is fixed on purpose but still requires gradients is reported too, so this is a warning. It reports
    layers that were frozen when the optimizer was built over the parameters that require gradients, and are unfrozen
    later, also by name. It also reports a loop over ``named_parameters()`` that fills groups by ``if
    name.startswith(...)`` and ``elif`` without ``else``, if the model has parameters that no condition takes and that
    are not only its first layers. And it reports a tensor outside of modules that requires gradients, such as an
    image or a latent code, if a training loop uses it and the program only reads it, nowhere uses ``.grad`` or
    ``autograd.grad``, and does more with it than to pass it to a model as data.

References
    PyTorch forum, "Best practice for freezing layers?", on optimizers built for some of the layers,
    https://discuss.pytorch.org/t/best-practice-for-freezing-layers/58156
    torch.optim, constructing it, https://docs.pytorch.org/docs/stable/optim.html#constructing-it
    Optimizer.add_param_group,
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html
"""

import ast
import weakref
from collections.abc import Iterator

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.generators import bound_once, innermost_function, is_generator
from trueloop.analysis.queries.late_layers import create_later_fix, late_layers, unfrozen_too_late, unoptimized_layers
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import first_few, format_count
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.optimizer.parameters_missing.groups_left_out import groups_left_out
from trueloop.failures.optimizer.parameters_missing.heads_left_out import heads_left_out
from trueloop.failures.optimizer.parameters_missing.leaf_tensors import leaves_left_out
from trueloop.failures.optimizer.parameters_missing.names_left_out import names_left_out
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardEnded, ModelCalled, OptimizerCreated, Ref, Refs, StateLoaded, StepTaken
from trueloop.tracing.trackers.parameter_ownership import CalledModel, ParameterOwnership
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_SHARE_AROUND = 0.5  # of the missing parameters: as many as are updated, if they lie before and behind these
MAX_HEAD_PARAMETERS = 4  # of a loss or head with parameters of its own
MIN_UPDATES = 4  # updates with unused gradients; by then, all other optimizers should have stepped


class Detector(BaseDetector):
    """Counts the updates in which parameters of a model got gradients that no optimizer used."""

    ownership: ParameterOwnership

    def __init__(self) -> None:
        self._updates = WeakIdDict[Ref, int]()
        """Model -> number of successive updates with missing parameters."""
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._backward_at: CodePosition | None = None
        self._with_empty_group: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._grouped_by_kind: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Optimizers that have parameters of one layer in several groups, as for weight decay."""
        self._after_model: weakref.WeakKeyDictionary[Ref, bool] = weakref.WeakKeyDictionary()
        """Small module that gets the output of a model -> whether it returns a number, as a loss does."""
        self._loaded: weakref.WeakSet[Ref] = weakref.WeakSet()
        """Parameters that were read from a state_dict."""

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record an optimizer of which a group has no parameters, or whose groups divide layers."""
        if not all(event.groups):
            self._with_empty_group.add(event.optimizer)
        layers = [{ref.name.rpartition(".")[0] for ref in group} for group in event.groups]
        if sum(map(len, layers)) > len(set[str]().union(*layers)):
            self._grouped_by_kind.add(event.optimizer)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the line, to recognise a library that runs the whole training."""
        self._backward_at = event.location

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record pretrained parameters."""
        self._loaded.update(event.live_parameters)

    def on_model_called(self, event: ModelCalled) -> None:
        """Record a small module that gets the output of another one, with its graph."""
        is_small = len(event.parameters) <= MAX_HEAD_PARAMETERS and event.has_graph
        if is_small and event.inputs is not None and event.inputs.grad_fn is not None:
            self._after_model[event.model] = getattr(event.output, "ndim", None) == 0

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence at a step that does not update some of a model's parameters."""
        outside = self.ownership.without_optimizer | self.ownership.unfrozen
        if not outside and not len(self._updates):  # the usual case
            return None
        for model in self.ownership.models.values():
            missing = outside & model.parameters
            is_other = event.with_gradient.isdisjoint(model.parameters)
            is_whole = is_other and (self._is_head(model) or self._is_forgotten(event, model))
            if model.changed or not self.ownership.received or (is_other and not is_whole):
                continue
            if not missing:
                self._updates.remove(model.ref)
                continue
            updates = self._updates.put(model.ref, (self._updates.get(model.ref) or 0) + 1)
            is_due = updates >= MIN_UPDATES and model.values and model.ref not in self._reported
            if is_due and self._is_certain(event, model, missing):
                self._reported.add(model.ref)
                return self._evidence(event, model, missing, updates)
        return None

    def _is_certain(self, event: StepTaken, model: CalledModel, missing: Refs) -> bool:
        """Return True if the missing parameters were unfrozen, or most others are updated, and not only later ones."""
        stepped = model.parameters.intersection(self.ownership.in_optimizers)
        if event.parameters - self.ownership.in_models() - event.with_gradient:
            return False
        if self.ownership.unfrozen & missing or event.optimizer in self._with_empty_group:
            return True
        if self._is_forgotten(event, model) or self._is_head(model):
            return True
        is_within = _is_within(model, missing, event.with_gradient & model.parameters)
        share = MIN_SHARE_AROUND if is_within else 1
        return len(stepped) > share * len(missing) and self._is_oversight(event, model, missing)

    def _is_forgotten(self, event: StepTaken, model: CalledModel) -> bool:
        """Return True for a model without optimizer, if two optimizers that step have exactly the same parameters."""
        return model.parameters <= self.ownership.without_optimizer and any(
            other is not event.optimizer
            and owner.parameters == event.parameters
            and owner.latest_step is not None
            and event.update - owner.latest_step < MIN_UPDATES
            for other, owner in self.ownership.optimizers.items()
        )

    def _is_head(self, model: CalledModel) -> bool:
        """Return True for a loss or head behind a model, with parameters of its own that no optimizer contains.

        The embedding of a loss counts as its own. Parameters that were loaded may be fixed on purpose.
        """
        from torch import nn

        is_loss = self._after_model.get(model.ref)
        if is_loss is None or not model.parameters <= self.ownership.without_optimizer:
            return False
        kinds = [each.kind for each in model.places.values()]
        is_own = all(not hasattr(nn, kind) or (is_loss and kind == "Embedding") for kind, _, _ in kinds)
        dimensions = [count for _, _, count in kinds]
        return (
            is_own
            and max(dimensions) <= 2
            and (is_loss or 2 in dimensions)
            and self._loaded.isdisjoint(model.parameters)
        )

    def _is_oversight(self, event: StepTaken, model: CalledModel, missing: Refs) -> bool:
        """Return False if the program may have left out the first layers of a model on purpose."""
        updated = [each for each in model.places_of(event.with_gradient & model.parameters) if each is not None]
        absent = [each for each in model.places_of(missing) if each is not None]
        if len(updated) < len(event.with_gradient & model.parameters) or not absent:
            return False
        if min(updated).number < max(absent).number:
            return True
        if all(each.is_beside_layers for each in absent):  # a model lists these before its layers
            return min(each for each in model.places.values() if not each.is_beside_layers) in updated
        if event.optimizer not in self._grouped_by_kind:
            return False
        kinds = [{each.kind for each in places} for places in (absent, updated)]
        return any({each[part] for each in kinds[0]}.isdisjoint(each[part] for each in kinds[1]) for part in range(3))

    def _evidence(self, event: StepTaken, model: CalledModel, missing: Refs, updates: int) -> Evidence:
        unfrozen = self.ownership.unfrozen & missing
        names = sorted(ref.name for ref in unfrozen or missing)
        built_at, label, location = (
            self.ownership.built_at(event.optimizer),
            "the optimizer was built here",
            event.location,
        )
        if built_at is not None and location == self._backward_at:  # a library steps, in `trainer.fit(...)`
            built_at, label, location = location, "the optimizer steps in this call", built_at
        cause = "the update leaves them out" if event.hand_written else "no optimizer contains them"
        if self._is_forgotten(event, model):
            cause += ", and two optimizers have the same parameters of another model"
        if event.optimizer in self._with_empty_group:
            cause += f", and a parameter group of {event.optimizer.name} is empty, perhaps as a generator was used up"
            location, built_at = built_at or location, None
        how = "were unfrozen after the optimizer was built, and got" if unfrozen else "got"
        return Evidence(
            message=f"{format_count(len(names), 'parameter')} of {model.ref.name} {how} gradients in {updates} "
            f"updates but did not change, because {cause}: {first_few(names)}.",
            location=location,
            related=((built_at, label),) if built_at is not None else (),
        )


def _is_within(model: CalledModel, missing: Refs, updated: Refs) -> bool:
    """Return True if layers before all missing ones and layers behind all missing ones are updated."""
    absent, present = ([each for each in model.places_of(refs) if each is not None] for refs in (missing, updated))
    return bool(absent) and bool(present) and min(present) < min(absent) and max(absent) < max(present)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the first step of an optimizer that does not contain a layer of its model."""
    for creation in source.ops(OpKind.CREATE):
        if creation.subject.kind is not ValueKind.OPTIMIZER:
            continue
        built = (creation.node, "the optimizer was built here")
        changes = list(late_layers(source, creation))
        replaced = [value for each in changes if each.replaces for value in each.operation.inputs]  # see OPT002
        for change in changes:
            if not change.replaces:
                yield Hit(
                    message=f"`{source.text.segment(change.step.node)}` does not update a layer that was added after "
                    "the optimizer was built: its parameters are in no optimizer.",
                    node=change.step.node,
                    related=(built, (change.operation.node, "added here")),
                    fix=create_later_fix(source, creation, change.operation),
                )
        unfrozen = unfrozen_too_late(source, creation)
        if unfrozen is not None:
            yield Hit(
                message=f"`{source.text.segment(unfrozen[1].node)}` does not update what was unfrozen after the "
                "optimizer was built: it only has the parameters that required gradients then.",
                node=unfrozen[1].node,
                related=(built, (unfrozen[0].node, "unfrozen here")),
            )
        for omission in [each for each in unoptimized_layers(source, creation) if each.layer not in replaced]:
            yield Hit(
                message=f"`{source.text.segment(omission.step.node)}` does not update a layer that gets gradients: its "
                "parameters are in no optimizer.",
                node=omission.step.node,
                related=(built, (omission.layer.node, "the layer that is never updated")),
            )

    yield from _used_up_groups(source)
    for head in heads_left_out(source):
        name = source.text.segment(head.call.node.func)
        yield Hit(
            message=f"`{source.text.segment(head.built.node.func)}` does not get the parameters of `{name}`, which "
            "gets the output of the trained model: they are in no optimizer and never change.",
            node=head.built.node,
            related=((head.call.node, "called here"),),
        )
    for leaf in leaves_left_out(source):
        yield Hit(
            message=f"`{leaf.name}` gets a gradient in every update, but no optimizer holds it and nothing reads the "
            "gradient: it never changes.",
            node=leaf.created,
            related=((leaf.step, "this step updates other parameters only"),),
        )
    yield from _groups(source)


def _groups(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop over names, and each group built by hand, whose parameters reach no optimizer."""
    for found in names_left_out(source):
        yield Hit(
            message=f"The groups leave out {first_few([f'`{name}`' for name in found.names])}: no condition takes "
            "these names, so the optimizer never updates them.",
            node=found.loop,
            severity=Severity.WARNING,
        )
    for group in groups_left_out(source):
        yield Hit(
            message=f"`{group.name}` holds parameters for a group of their own, but no optimizer gets it, while other "
            "groups are passed: these parameters never change.",
            node=group.built,
            severity=Severity.WARNING,
            related=((group.receiver, "gets the other groups"),),
        )


def _used_up_groups(source: SourceFile) -> Iterator[Hit]:
    """Yield each generator in a parameter group that other code has iterated before."""
    groups = list(source.nodes_of(ast.Dict))
    values = [value for each in groups for key, value in zip(each.keys, each.values, strict=True) if _is_params(key)]
    for value in values:
        name, function = dotted_name(value), innermost_function(source.tree, value)
        binding = bound_once(source.tree, name, function) if name else None
        if binding is None or not is_generator(source, binding.value):
            continue
        reads = [
            each
            for each in nodes_in(function or source.tree, ast.Name, ast.Attribute)
            if isinstance(each.ctx, ast.Load)
            and dotted_name(each) == name
            and binding.lineno < each.lineno < value.lineno
            and _iterates(source.parents.get(id(each)), each)
        ]
        if reads:
            yield Hit(
                message=f"A parameter group is empty: `{name}` is a generator, which other code has used up before.",
                node=value,
                related=((reads[0], "used up here"), (binding, "the generator")),
            )


def _is_params(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == "params"


def _iterates(parent: ast.AST | None, node: ast.AST) -> bool:
    """Return True if a node is an argument of a call, or what a loop iterates over."""
    if isinstance(parent, ast.Call):
        return node in parent.args
    return isinstance(parent, ast.For | ast.comprehension) and parent.iter is node


RULE = Rule(required_words=("torch", "optim", "backward(|params", ".step(|params"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
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
