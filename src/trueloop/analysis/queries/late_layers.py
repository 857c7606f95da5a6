"""Finds layers that are missing from the optimizer: they were added to the model too late, or never passed."""

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.abstract_value import FROZEN, MANAGED, NO_GRAPH, SUBMODULE, AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import assigned_names, names_in
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.statement_moves import move_after_fix
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Fix, nodes_in

LAYERS_WITH_WEIGHTS: Final = frozenset((
    "Linear", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    "Embedding", "EmbeddingBag", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm", "RMSNorm",
    "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "MultiheadAttention", "TransformerEncoderLayer",
    "TransformerDecoderLayer", "PReLU",
))  # fmt: skip
ADDING_OPERATIONS: Final = frozenset(("add_module", "[]"))


class LateLayer(NamedTuple):
    """A layer or parameter that was added to a model after its optimizer was created."""

    operation: Op
    step: Op
    """First step of the optimizer after the addition."""
    replaces: bool
    """Whether the layer replaces another one of the same name."""


def has_trainable_weights(value: AbstractValue) -> bool:
    """Return True if a module certainly has parameters that require gradients."""
    if FROZEN in value.facts or value.kind is not ValueKind.MODEL:
        return False
    package, _, last = value.name.rpartition(".")
    if package == "torch.nn" and last in LAYERS_WITH_WEIGHTS:
        return True
    inner = (
        value.attributes.values()
        if isinstance(value.scope, AbstractValue)
        else value.sources
        if last == "Sequential"
        else ()
    )
    return any(has_trainable_weights(each) for each in inner if each.kind is ValueKind.MODEL and each is not value)


def late_layers(source: SourceFile, creation: Op) -> Iterator[LateLayer]:
    """Yield the layers added to a model after its optimizer was created, and never added to an optimizer.

    Args:
        source: the file.
        creation: operation that creates the optimizer.
    """
    optimizer = creation.subject
    if not optimizer.models() or MANAGED in optimizer.facts:
        return
    later = [
        each for each in source.operations if each.entry_point == creation.entry_point and each.index > creation.index
    ]
    if any(may_add_parameters(each, optimizer) for each in later):
        return
    created = {id(each.subject) for each in later if each.kind is OpKind.CREATE}
    for change in later:
        if change.kind not in (OpKind.SET_ATTRIBUTE, OpKind.STORE_ITEM) or change.subject.kind is not ValueKind.MODEL:
            continue
        parts = [
            part for each in change.inputs for part in (each.sources if each.kind is ValueKind.SEQUENCE else (each,))
        ]
        adds_parameters = any(
            is_trainable_parameter(part)
            or (id(part) in created and has_trainable_weights(part) and _contains_only_new(part, created))
            for part in parts
        )
        frozen = any(FROZEN in each.facts for each in change.subject.with_enclosing_modules())
        is_optimized = (not frozen and optimizer.covers(change.subject)) or _holds_replaced(source, optimizer, change)
        if adds_parameters and is_optimized:
            step = _first_step(later, change, optimizer)
            if step is not None and not edits_param_groups(source):
                yield LateLayer(change, step, _replaces(source, change))


def _holds_replaced(source: SourceFile, optimizer: AbstractValue, change: Op) -> bool:
    """Return True if an optimizer was built over the very layer that a change replaces: ``model.fc.parameters()``."""
    owner, name = change.subject, change.name
    before = [
        value
        for each in source.ops(OpKind.SET_ATTRIBUTE)
        if each.index < change.index and each.name == name and each.subject is owner
        for value in each.inputs
    ]
    return any(
        each in before[-1:]
        or (SUBMODULE in each.facts and each.sources[0] is owner and getattr(each.node, "attr", "") == name)
        for each in optimizer.models()
    )


def create_later_fix(source: SourceFile, creation: Op, change: Op) -> Fix | None:
    """Return the fix that creates the optimizer after the change of the model; None if impossible."""
    block = source.block(creation.statement)
    ends = [number for number, each in enumerate(block) if each in (creation.statement, change.statement)]
    if len(ends) != 2 or creation.statement is None or block[ends[0]] is not creation.statement:
        return None
    name = assigned_names(creation.statement)
    if any(names_in(each) & name for each in block[ends[0] + 1 : ends[1]]):
        return None
    return move_after_fix(source, creation, change, "Build the optimizer after the last change of the model")


def may_add_parameters(operation: Op, optimizer: AbstractValue) -> bool:
    """Return True if an operation may add parameters to an optimizer."""
    is_passed_out = operation.kind is OpKind.ESCAPE and any(each.may_alias(optimizer) for each in operation.inputs)
    return is_passed_out or operation.name == "add_param_group"


def edits_param_groups(source: SourceFile) -> bool:
    """Return True if a program calls methods of an optimizer's groups, such as ``param_groups[0]["params"].append``."""
    return any(
        "param_groups" in names_in(each.func) for each in source.all_calls if isinstance(each.func, ast.Attribute)
    )


def is_trainable_parameter(part: AbstractValue) -> bool:
    """Return True for ``nn.Parameter(...)`` that requires gradients."""
    requires_grad = part.arguments.get("requires_grad") or part.arguments.get("1")
    is_parameter = part.name == "torch.nn.Parameter" and isinstance(part.node, ast.Call)
    return is_parameter and (requires_grad is None or requires_grad.constant() is True)


def _contains_only_new(part: AbstractValue, created: set[int]) -> bool:
    """Return True if a new layer does not contain an older one."""
    if part.name.rpartition(".")[2] in LAYERS_WITH_WEIGHTS:
        return True
    inner = (
        part.sources if part.name == "torch.nn.Sequential" else (*part.arguments.values(), *part.attributes.values())
    )
    return not any(each.kind in (ValueKind.MODEL, ValueKind.UNKNOWN) and id(each) not in created for each in inner)


def _first_step(run: list[Op], change: Op, optimizer: AbstractValue) -> Op | None:
    """Return the first step after a change, under the same conditions, if the changed model is called and trained."""
    later = [each for each in run if each.index > change.index]
    step = next((each for each in later if each.kind is OpKind.STEP and each.subject.may_alias(optimizer)), None)
    is_recreated = any(each.kind is OpKind.CREATE and each.subject.kind is ValueKind.OPTIMIZER for each in later)
    step_conditions = [each.condition_key() for each in step.branches] if step is not None else []
    in_loop = step is not None and bool(change.loops) and step.is_inside(change.loops[-1]) and not step.excludes(change)
    is_certain = in_loop or all(each.condition_key() in step_conditions for each in change.branches)
    if step is None or is_recreated or not is_certain:
        return None
    enclosing = change.subject.with_enclosing_modules()
    called = any(
        each.kind is OpKind.MODEL_CALL and any(each.subject.may_alias(one) for one in enclosing) for each in later
    )
    backward = any(each.kind is OpKind.BACKWARD and each.index < step.index for each in later)
    return step if called and backward else None


def _replaces(source: SourceFile, change: Op) -> bool:
    if change.kind is OpKind.STORE_ITEM:  # ``model[2]`` existed before, but ``heads["new"]`` probably not
        return not change.subject.name.endswith("Dict")
    if change.name in ADDING_OPERATIONS:
        return False
    owner, name = change.subject, change.name
    before = (
        each
        for each in source.ops(OpKind.SET_ATTRIBUTE)
        if each.index < change.index and each.entry_point == change.entry_point
    )
    return not isinstance(owner.scope, AbstractValue) or any(
        each.name == name and each.subject is owner for each in before
    )


def unfrozen_too_late(source: SourceFile, creation: Op) -> tuple[Op, Op] | None:
    """Return what turns on gradients after an optimizer was built over the parameters that had them, and a step.

    None if it is not certain, or if parameters are added to the optimizer later.
    """
    optimizer = creation.subject
    if MANAGED in optimizer.facts or not _is_filtered(source, creation):
        return None
    run = source.ops_of_run(creation)
    later = [each for each in run if each.index > creation.index]
    changes = [each for each in run if each.kind is OpKind.SET_REQUIRES_GRAD and optimizer.covers(each.subject)]
    frozen = [each for each in changes if each.value is False and each.index < creation.index]
    unfrozen = [each for each in changes if each.value is True and each.index > creation.index]
    unfreeze = next((each for each in unfrozen if any(_overlaps(each, one) for one in frozen)), None)
    rebuilt = any(each.kind is OpKind.CREATE and each.subject.kind is ValueKind.OPTIMIZER for each in later)
    if unfreeze is None or rebuilt or any(may_add_parameters(each, optimizer) for each in later):
        return None
    steps = (each for each in later if each.kind is OpKind.STEP and each.index > unfreeze.index)
    step = next((each for each in steps if each.subject.may_alias(optimizer)), None)
    return None if step is None else (unfreeze, step)


def _is_filtered(source: SourceFile, creation: Op) -> bool:
    """Return True if an optimizer gets only the parameters that require gradients when it is built."""
    built_over: list[ast.AST] = [
        creation.node,
        *(each.node for each in creation.subject.sources if each.node is not None),
    ]
    names = {each.id for node in built_over for each in nodes_in(node, ast.Name)}
    built_over += [each for each in source.nodes_of(ast.FunctionDef) if each.name in names]
    for call in source.all_calls:  # if p.requires_grad: params.append(p)
        if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in names:
            parent = source.parents.get(id(source.statement_of(call)))
            built_over += [parent.test] if isinstance(parent, ast.If) else []
    return any(".requires_grad" in ast.unparse(each) for each in built_over)


def _overlaps(unfreeze: Op, freeze: Op) -> bool:
    """Return True if two changes of ``requires_grad`` have parameters in common.

    A part with a computed name, as ``getattr(model, name)``, has those that the same code has frozen.
    """
    one, other = unfreeze.subject, freeze.subject
    if one.covers(other) or other.covers(one):
        return True
    is_same = ast.unparse(unfreeze.node).rpartition("(")[0] == ast.unparse(freeze.node).rpartition("(")[0]
    is_computed = any(SUBMODULE in each.facts and isinstance(each.node, ast.Call) for each in one.models())
    return is_computed and is_same


class UnoptimizedLayer(NamedTuple):
    """A layer that is in no optimizer but gets gradients, because it is between optimized layers and the loss."""

    layer: AbstractValue
    model: AbstractValue
    step: Op


def unoptimized_layers(source: SourceFile, creation: Op) -> Iterator[UnoptimizedLayer]:
    """Yield the layers that are in no optimizer, in the models that have other layers in this optimizer."""
    optimized = [each for each in creation.subject.models() if SUBMODULE not in each.facts]
    parents = {
        id(model): model for each in optimized for model in each.owners if isinstance(model.scope, AbstractValue)
    }
    optimizers = [each.subject for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.OPTIMIZER]
    run = [each for each in source.operations if each.entry_point == creation.entry_point]
    for model in parents.values():
        layers = [
            each
            for each in model.attributes.values()
            if each.name.rpartition(".")[2] in LAYERS_WITH_WEIGHTS and has_trainable_weights(each)
        ]
        unoptimized = [each for each in layers if not any(_may_contain(one, each) for one in optimizers)]
        if not unoptimized or source.escapes(model, run) or any(accesses_weights(each, model) for each in run):
            continue
        for layer in unoptimized:
            step = _step_after_backward(run, layer, creation.subject, optimized)
            if step is not None and FROZEN not in model.facts:
                yield UnoptimizedLayer(layer, model, step)


def _may_contain(optimizer: AbstractValue, layer: AbstractValue) -> bool:
    """Return True if an optimizer contains a layer, or an unspecified submodule of the layer's model."""
    enclosing = layer.with_enclosing_modules()
    unspecified = (each for each in optimizer.models() if SUBMODULE in each.facts)
    return optimizer.covers(layer) or any(
        model is other for each in unspecified for model in each.with_enclosing_modules() for other in enclosing
    )


def accesses_weights(operation: Op, model: AbstractValue) -> bool:
    """Return True if an operation loads or reads the weights of a model or submodule."""
    if operation.kind is OpKind.LOAD_STATE_DICT:
        return operation.subject.covers(model) or model.covers(operation.subject)
    values = (
        operation.subject.ancestors()
        if operation.kind in (OpKind.TORCH_CALL, OpKind.STORE_ITEM, OpKind.ACCESS_GRADIENTS)
        else ()
    )
    return any(each.kind is ValueKind.PARAMETERS and model.covers(each) for each in values)


def _step_after_backward(
    run: list[Op], layer: AbstractValue, optimizer: AbstractValue, optimized: list[AbstractValue]
) -> Op | None:
    """Return the first step of the optimizer after a backward pass through a layer and optimized layers before it."""
    calls = [
        each for each in run if each.kind is OpKind.MODEL_CALL and each.subject is layer and each.result is not None
    ]
    after_optimized = [
        each
        for each in calls
        if any(inner is part for value in each.inputs for inner in gradient_path(value) for part in optimized)
    ]
    for backward in (each for each in run if each.kind is OpKind.BACKWARD and after_optimized):
        reached = {id(each) for each in gradient_path(backward.subject)}
        if any(id(each.result) in reached for each in after_optimized):
            steps = (each for each in run if each.kind is OpKind.STEP and each.index > backward.index)
            return next((each for each in steps if each.subject is optimizer), None)
    return None


def gradient_path(value: AbstractValue) -> Iterator[AbstractValue]:
    """Yield a value and all values to which its gradients flow."""
    seen, queue = {id(value)}, [value]
    while queue and len(seen) < 500:
        each = queue.pop()
        if NO_GRAPH in each.facts:
            continue
        yield each
        unseen = [inner for inner in (*each.sources, *each.union) if id(inner) not in seen]
        seen.update(id(inner) for inner in unseen)
        queue += unseen if each.kind is not ValueKind.MODEL else ()
