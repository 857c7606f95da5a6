"""Finds the results of evaluations that run with gradients enabled, and that a growing container keeps."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.held_out_names import is_held_out
from trueloop.analysis.queries.modes import is_in_eval_mode, is_partly_frozen
from trueloop.analysis.source_file import SourceFile
from trueloop.failures.memory.graph_kept.growing_containers import holds_graph, is_growing, is_within_update

_EVALUATION: Final = re.compile(r"_*(eval|val|test|dev)", re.IGNORECASE)


class KeptResult(NamedTuple):
    """A result of an evaluation that is stored with its graph."""

    store: Op
    call: Op
    """The call of the model that built the graph."""


def kept_results(source: SourceFile) -> Iterator[KeptResult]:
    """Yield each result of an evaluation between updates that is added with its graph to a growing container."""
    calls = [each for each in source.ops(OpKind.MODEL_CALL) if each.grad is True and each.loops]
    evaluations = [each for each in calls if _is_evaluation(source, each) and _is_unused(source, each)]
    for store in source.ops(OpKind.STORE_ITEM, OpKind.SET_ATTRIBUTE) if evaluations else ():
        run = [each for each in evaluations if each.entry_point == store.entry_point and each.index < store.index]
        kept = [each for each in run if any(holds_graph(value, results_of(source, each)) for value in store.inputs)]
        for call in kept[-1:]:
            if any(_is_kept_by(source, store, call, loop) for loop in store.loops) and _is_only_kept(source, store):
                yield KeptResult(store, call)


def results_of(source: SourceFile, call: Op) -> set[int]:
    """Return the ids of the output of a model and of the losses that are computed from it with gradients enabled."""
    losses = [each.result for each in source.ops(OpKind.LOSS) if each.index > call.index and each.grad is True]
    graphs = [each for each in losses if each is not None]
    return {id(call.result), *(id(e) for e in graphs if any(part is call.result for part in e.autograd_graph()))}


def _is_evaluation(source: SourceFile, call: Op) -> bool:
    """Return True for a call in eval mode, in a function that evaluates, or with held-out data."""
    is_named = _EVALUATION.match(getattr(call.function, "name", "")) is not None
    data = [*call.node.args, *(each.value for each in call.node.keywords)]
    return is_named or any(is_held_out(each) for each in data) or is_in_eval_mode(source, call)


def _is_unused(source: SourceFile, call: Op) -> bool:
    """Return True if no backward pass goes through the output of a model, none of whose layers is ever frozen."""
    if is_partly_frozen(source, call.subject):
        return False
    backwards = source.ops(OpKind.BACKWARD)
    return not any(part is call.result for each in backwards for part in each.subject.autograd_graph())


def _is_kept_by(source: SourceFile, store: Op, call: Op, loop: Loop) -> bool:
    """Return True if each iteration of a loop trains the model, evaluates it, and keeps the result."""
    steps = [each for each in source.ops(OpKind.STEP) if each.entry_point == store.entry_point]
    return (
        call.is_inside(loop)
        and any(each.is_inside(loop) and each.subject.covers(call.subject) for each in steps)
        and not is_within_update(loop, store.loops, steps)
        and is_growing(source, store, loop)
    )


def _is_only_kept(source: SourceFile, store: Op) -> bool:
    """Return True if no backward pass goes through the container."""
    container = {id(store.subject), id(store.result)}
    backwards = (each.subject for each in source.ops_of_run(store) if each.kind is OpKind.BACKWARD)
    return not any(id(part) in container for each in backwards for part in each.autograd_graph())
