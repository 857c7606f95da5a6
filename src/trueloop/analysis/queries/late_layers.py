"""Parts that a model gets after an optimizer was built over it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.abstract_value import FROZEN, MANAGED, NO_GRAPH, SUBMODULE, AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import assigned_names, names_in
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.statement_moves import move_after_fix
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Fix

LAYERS_WITH_WEIGHTS: Final = frozenset((
    "Linear", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    "Embedding", "EmbeddingBag", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm", "RMSNorm",
    "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "MultiheadAttention", "TransformerEncoderLayer",
    "TransformerDecoderLayer", "PReLU",
))  # fmt: skip
ADDING_OPERATIONS: Final = frozenset(("add_module", "[]"))


class LateLayer(NamedTuple):
    """A part with parameters that was put into a model behind an optimizer's back."""

    operation: Op
    step: Op
    """The first of the optimizer's after it."""
    replaces: bool
    """Something of the same name was there before."""


def has_trainable_weights(value: AbstractValue) -> bool:
    """Return True where a module surely has parameters that want gradients."""
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


def late_layers(source: SourceFile, made: Op) -> Iterator[LateLayer]:
    """Yield what a model got after an optimizer was built over it, and what no optimizer was told of.

    Args:
        source: the file.
        made: the optimizer.
    """
    optimizer = made.subject
    if not optimizer.models() or MANAGED in optimizer.facts:
        return
    run = [each for each in source.operations if each.entry_point == made.entry_point and each.index > made.index]
    if any(_may_add_parameters(each, optimizer) for each in run):
        return
    built = {id(each.subject) for each in run if each.kind is OpKind.CREATE}
    for change in run:
        if change.kind not in (OpKind.SET_ATTRIBUTE, OpKind.STORE_ITEM) or change.subject.kind is not ValueKind.MODEL:
            continue
        parts = [
            part for each in change.inputs for part in (each.sources if each.kind is ValueKind.SEQUENCE else (each,))
        ]
        fresh = any(
            _is_trainable_parameter(part)
            or (id(part) in built and has_trainable_weights(part) and _contains_only_new(part, built))
            for part in parts
        )
        frozen = any(FROZEN in each.facts for each in change.subject.with_enclosing_modules())
        if fresh and not frozen and optimizer.covers(change.subject):
            step = _first_step(run, change, optimizer)
            if step is not None and not _edits_param_groups(source):
                yield LateLayer(change, step, _replaces(source, change))


def create_later_fix(source: SourceFile, made: Op, change: Op) -> Fix | None:
    """Return the fix: the line that builds the optimizer goes behind the change of the model; else None."""
    block = source.block(made.statement)
    ends = [number for number, each in enumerate(block) if each in (made.statement, change.statement)]
    if len(ends) != 2 or made.statement is None or block[ends[0]] is not made.statement:
        return None
    name = assigned_names(made.statement)
    if any(names_in(each) & name for each in block[ends[0] + 1 : ends[1]]):
        return None
    return move_after_fix(source, made, change, "Build the optimizer after the last change of the model")


def _may_add_parameters(operation: Op, optimizer: AbstractValue) -> bool:
    """Return True where an optimizer may get to know of other parameters."""
    given = operation.kind is OpKind.ESCAPE and any(each.may_alias(optimizer) for each in operation.inputs)
    return given or operation.name == "add_param_group"


def _edits_param_groups(source: SourceFile) -> bool:
    return any(
        "param_groups" in names_in(each.func) for each in source.all_calls if isinstance(each.func, ast.Attribute)
    )


def _is_trainable_parameter(part: AbstractValue) -> bool:
    """Return True for ``nn.Parameter(...)`` that wants gradients."""
    wants = part.arguments.get("requires_grad") or part.arguments.get("1")
    made = part.name == "torch.nn.Parameter" and isinstance(part.node, ast.Call)
    return made and (wants is None or wants.constant() is True)


def _contains_only_new(part: AbstractValue, built: set[int]) -> bool:
    """Return True where a new part does not stand around an old one."""
    if part.name.rpartition(".")[2] in LAYERS_WITH_WEIGHTS:
        return True
    inner = (
        part.sources if part.name == "torch.nn.Sequential" else (*part.arguments.values(), *part.attributes.values())
    )
    return not any(each.kind in (ValueKind.MODEL, ValueKind.UNKNOWN) and id(each) not in built for each in inner)


def _first_step(run: list[Op], change: Op, optimizer: AbstractValue) -> Op | None:
    """Return the first step after a change that the changed model was called for, on the change's conditions."""
    later = [each for each in run if each.index > change.index]
    step = next((each for each in later if each.kind is OpKind.STEP and each.subject.may_alias(optimizer)), None)
    anew = any(each.kind is OpKind.CREATE and each.subject.kind is ValueKind.OPTIMIZER for each in later)
    asked = [each.condition_key() for each in step.branches] if step is not None else []
    if step is None or anew or any(each.condition_key() not in asked for each in change.branches):
        return None
    above = change.subject.with_enclosing_modules()
    called = any(each.kind is OpKind.MODEL_CALL and any(each.subject.may_alias(one) for one in above) for each in later)
    backward = any(each.kind is OpKind.BACKWARD and each.index < step.index for each in later)
    return step if called and backward else None


def _replaces(source: SourceFile, change: Op) -> bool:
    if change.kind is OpKind.STORE_ITEM:  # model[2] is there before; heads["new"] most likely not
        return not change.subject.name.endswith("Dict")
    if change.name in ADDING_OPERATIONS:
        return False
    owner, word = change.subject, change.name
    before = (
        each
        for each in source.ops(OpKind.SET_ATTRIBUTE)
        if each.index < change.index and each.entry_point == change.entry_point
    )
    return not isinstance(owner.scope, AbstractValue) or any(
        each.name == word and each.subject is owner for each in before
    )


class UnoptimizedLayer(NamedTuple):
    """A layer that gets gradients, between layers that are stepped and the loss, and is in no optimizer."""

    layer: AbstractValue
    model: AbstractValue
    step: Op


def unoptimized_layers(source: SourceFile, made: Op) -> Iterator[UnoptimizedLayer]:
    """Yield layers of a model of this file that an optimizer over other parts of it leaves out, and all others do."""
    held = [each for each in made.subject.models() if SUBMODULE not in each.facts]
    wholes = {id(whole): whole for each in held for whole in each.owners if isinstance(whole.scope, AbstractValue)}
    optimizers = [each.subject for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.OPTIMIZER]
    run = [each for each in source.operations if each.entry_point == made.entry_point]
    for whole in wholes.values():
        layers = [
            each
            for each in whole.attributes.values()
            if each.name.rpartition(".")[2] in LAYERS_WITH_WEIGHTS and has_trainable_weights(each)
        ]
        left = [each for each in layers if not any(_may_contain(one, each) for one in optimizers)]
        if not left or source.escapes(whole, run) or any(_accesses_weights(each, whole) for each in run):
            continue
        for layer in left:
            step = _step_after_backward(run, layer, made.subject, held)
            if step is not None and FROZEN not in whole.facts:
                yield UnoptimizedLayer(layer, whole, step)


def _may_contain(optimizer: AbstractValue, layer: AbstractValue) -> bool:
    """Return True where an optimizer has a layer, or some part of its model that the text does not tell."""
    above = layer.with_enclosing_modules()
    some = (each for each in optimizer.models() if SUBMODULE in each.facts)
    return optimizer.covers(layer) or any(
        whole is one for each in some for whole in each.with_enclosing_modules() for one in above
    )


def _accesses_weights(operation: Op, whole: AbstractValue) -> bool:
    """Return True where the weights of a model or of a part of it are loaded, or looked at one by one."""
    if operation.kind is OpKind.LOAD_STATE_DICT:
        return operation.subject.covers(whole) or whole.covers(operation.subject)
    looked = (
        operation.subject.ancestors()
        if operation.kind in (OpKind.TORCH_CALL, OpKind.STORE_ITEM, OpKind.ACCESS_GRADIENTS)
        else ()
    )
    return any(each.kind is ValueKind.PARAMETERS and whole.covers(each) for each in looked)


def _step_after_backward(
    run: list[Op], layer: AbstractValue, optimizer: AbstractValue, held: list[AbstractValue]
) -> Op | None:
    """Return the optimizer's first step behind a backward through a layer, and through others before it."""
    called = [
        each for each in run if each.kind is OpKind.MODEL_CALL and each.subject is layer and each.result is not None
    ]
    after = [
        each
        for each in called
        if any(one is part for given in each.inputs for one in _gradient_path(given) for part in held)
    ]
    for backward in (each for each in run if each.kind is OpKind.BACKWARD and after):
        through = {id(one) for one in _gradient_path(backward.subject)}
        if any(id(each.result) in through for each in after):
            behind = (each for each in run if each.kind is OpKind.STEP and each.index > backward.index)
            return next((each for each in behind if each.subject is optimizer), None)
    return None


def _gradient_path(value: AbstractValue) -> Iterator[AbstractValue]:
    """Yield what gradients of a thing flow to."""
    seen, queue = {id(value)}, [value]
    while queue and len(seen) < 500:
        each = queue.pop()
        if NO_GRAPH in each.facts:
            continue
        yield each
        fresh = [one for one in (*each.sources, *each.union) if id(one) not in seen]
        seen.update(id(one) for one in fresh)
        queue += fresh if each.kind is not ValueKind.MODEL else ()
