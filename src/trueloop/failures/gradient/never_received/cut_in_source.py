"""Finds models whose outputs reach the loss only through code that cuts the graph, or not at all."""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.abstract_value import COPY, FORWARD_RESULT, FROZEN, LEAF, NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.late_layers import has_trainable_weights
from trueloop.analysis.queries.unregistered_modules import submodules
from trueloop.analysis.source_file import SourceFile

_CUTTING_METHODS: Final = frozenset(("detach", "detach_", "numpy", "tolist", "item"))
_VALUES: Final = (ValueKind.TENSOR, ValueKind.UNKNOWN, ValueKind.SEQUENCE)
_MAX_VALUES: Final = 2000


class CutOffModel(NamedTuple):
    """A call of a model that an optimizer trains, what cuts its output off, and the backward pass that misses it."""

    call: Op
    cut: ast.expr
    backward: Op


def cut_off_models(source: SourceFile) -> Iterator[CutOffModel]:
    """Yield the trained models that no backward pass reaches, and that one would reach without a cut."""
    for step in {each.entry_point: each for each in source.ops(OpKind.STEP)}.values():
        yield from _in_run(source, source.ops_of_run(step))


class OtherModel(NamedTuple):
    """A step of an optimizer that holds another model than the one that the losses train."""

    step: Op
    backward: Op
    called: Op
    """A call of the model that the optimizer holds, without gradients."""


def other_models(source: SourceFile) -> Iterator[OtherModel]:
    """Yield the steps of optimizers whose model makes targets without gradients, for a loss that trains another one.

    OPT002 reports an optimizer whose model has nothing to do with the loss.
    """
    created = [each.subject for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.OPTIMIZER]
    steps = {id(each.subject): each for each in source.ops(OpKind.STEP) if each.subject.kind is ValueKind.OPTIMIZER}
    for step in steps.values():
        run = source.ops_of_run(step)
        held = list(step.subject.models())
        calls = [e for e in run if e.kind is OpKind.MODEL_CALL and any(e.subject is model for model in held)]
        if not calls or any(each.grad is not False for each in calls):
            continue
        if any(source.escapes(model, run) for model in held):
            continue
        backwards = [each for each in run if each.kind is OpKind.BACKWARD]
        graphs = [_Graph(each.subject).reached for each in backwards]
        if any(step.subject.covers(model) or model.covers(step.subject) for reached in graphs for model in reached):
            continue
        outputs = {id(each.result) for each in calls}
        for backward, reached in zip(backwards, graphs, strict=True):
            makes_target = any(id(each) in outputs for each in backward.subject.ancestors(_MAX_VALUES))
            if makes_target and any(
                FROZEN not in model.facts
                and has_trainable_weights(model)
                and not any(each.covers(model) or model.covers(each) for each in created)
                for model in reached
            ):
                yield OtherModel(step, backward, calls[0])
                break


def _in_run(source: SourceFile, run: list[Op]) -> Iterator[CutOffModel]:
    optimizers = [each.subject for each in run if each.kind is OpKind.STEP]
    backwards = [each for each in run if each.kind is OpKind.BACKWARD]
    graphs = [_Graph(each.subject) for each in backwards]
    reached = [model for graph in graphs for model in graph.reached]
    found = set[int]()
    for backward, graph in zip(backwards, graphs, strict=True):
        for layer, cut in graph.cut_off if graph.reached else ():  # GRD009 reports a loss without any model
            is_reached = any(each.covers(layer) or layer.covers(each) for each in reached)
            is_trained = any(each.covers(layer) for each in optimizers) and has_trainable_weights(layer)
            if is_reached or not is_trained or _is_not_trained_here(run, layer) or source.escapes(layer, run):
                continue
            outer = [e for e in layer.with_enclosing_modules() if not any(e.covers(each) for each in reached)]
            call = next((e for e in run if e.kind is OpKind.MODEL_CALL and any(e.subject is m for m in outer)), None)
            is_new = call is not None and call.grad is True and id(call.subject) not in found
            if call is not None and is_new and not _is_written(source, source.text.segment(call.node.func)):
                found.update(map(id, submodules(call.subject)))
                yield CutOffModel(call, cut, backward)


class _Graph:
    """The models that a backward pass reaches, and those behind a cut, each with the cut."""

    def __init__(self, loss: AbstractValue) -> None:
        self.reached: list[AbstractValue] = []
        self.cut_off: list[tuple[AbstractValue, ast.expr]] = []
        seen, queue = set[int](), [loss]
        while queue and len(seen) < _MAX_VALUES:
            value = queue.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if value.kind is ValueKind.MODEL:
                self.reached.append(value)
            elif not value.facts & {NO_GRAPH, LEAF}:
                queue += _inputs(value)
            elif _is_cut(value):
                self.cut_off += [(model, value.node) for model in _models_behind(value)]
            else:  # what was computed from a detached tensor
                queue += [each for each in value.sources if NO_GRAPH in each.facts and each.kind in _VALUES]


def _inputs(value: AbstractValue) -> list[AbstractValue]:
    """Return what a value was computed from; for the output of a module of the program, what its forward returned."""
    inner = value.attributes.get(FORWARD_RESULT)
    if inner is not None and inner.kind in (ValueKind.TENSOR, ValueKind.SEQUENCE):
        return [inner]
    return [*value.sources, *value.union]


def _is_cut(value: AbstractValue) -> bool:
    """Return True for ``x.detach()``, ``x.data`` or ``x.numpy()`` of a tensor that has a graph."""
    match value.node:
        case ast.Call(func=ast.Attribute(attr=name)) if name in _CUTTING_METHODS:
            pass
        case ast.Attribute(attr="data"):
            pass
        case _:
            return False
    return bool(value.sources) and NO_GRAPH not in value.sources[0].facts


def _models_behind(cut: AbstractValue) -> list[AbstractValue]:
    found: list[AbstractValue] = []
    seen, queue = set[int](), [cut.sources[0]]
    while queue and len(seen) < _MAX_VALUES:
        value = queue.pop()
        if id(value) in seen or NO_GRAPH in value.facts or LEAF in value.facts:
            continue
        seen.add(id(value))
        if value.kind is ValueKind.MODEL:
            found.append(value)
        else:
            queue += _inputs(value)
    return found


def _is_not_trained_here(run: list[Op], model: AbstractValue) -> bool:
    """Return True for a model that is frozen, a copy of another one, or gets its weights from another one."""
    return bool(model.facts & {FROZEN, COPY}) or any(
        each.kind in (OpKind.SET_REQUIRES_GRAD, OpKind.LOAD_STATE_DICT)
        and (each.subject.covers(model) or model.covers(each.subject))
        for each in run
    )


def _is_written(source: SourceFile, name: str) -> bool:
    """Return True if the program changes a weight of a model by hand, as a moving average does."""
    changed = re.compile(rf"\b{re.escape(name)}\.\w+(\.data)?(\[[^\]\n]*\])*(\s*([-+*/@]?=)[^=]|\.(\w+_)\()")
    return bool(changed.search(source.text.source))
