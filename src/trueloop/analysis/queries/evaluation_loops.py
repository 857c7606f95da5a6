"""Finds evaluation loops, which are passes over a loader without training."""

import ast
from collections.abc import Iterator, Sequence

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import is_inside, is_statement
from trueloop.analysis.queries.modes import is_in_eval_mode, is_partly_frozen, is_training_step
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Fix


def find_loader(loop: Loop) -> AbstractValue | None:
    """Return the loader that a loop iterates over; None for any other iterable."""
    iterable = loop.iterable
    while iterable is not None and iterable.kind is ValueKind.SEQUENCE:
        iterable = iterable.arguments.get("iterable")
    values = list(iterable.alternatives()) if iterable is not None else []
    return iterable if values and all(each.kind is ValueKind.LOADER for each in values) else None


def evaluation_calls(source: SourceFile, *, grad: bool | None) -> Iterator[Op]:
    """Yield the model calls that run once per batch of a loader without training.

    Args:
        source: the file.
        grad: whether gradients are enabled; None = either.
    """
    calls = source.ops(OpKind.MODEL_CALL)
    call_nodes = {id(each.node) for each in calls}
    for call in calls:
        inner = any(id(each) in call_nodes for each in call.calls)  # a layer within the forward of a model
        if (grad is None or call.grad is grad) and call.loops and not inner and _is_evaluation(source, call):
            yield call


def _is_evaluation(source: SourceFile, call: Op) -> bool:
    """Return True if a model is called once per batch of a loader for its output, without training.

    False if the program iterates over the loader several times for one model, as for Monte Carlo dropout.
    """
    loop = call.loops[-1]
    model = call.subject
    if find_loader(loop) is None or model.kind is not ValueKind.MODEL or _discards_output(call):
        return False
    run = source.ops_of_run(call)
    inside = [each for each in run if any(outer is loop for outer in each.loops)]  # not other calls of the function
    if any(each.kind in (OpKind.BACKWARD, OpKind.STEP) for each in inside):
        return False
    called = [each for each in run if each.kind is OpKind.MODEL_CALL and each.subject.may_alias(model)]
    if sum(each in inside for each in called) != 1 or any(repeats_loader(source, call, each, run) for each in called):
        return False
    outer_loops = (source.ops_in_loop(each, root=call.entry_point) for each in call.loops[:-1])
    return all(any(is_training_step(source, op, model, operations) for op in operations) for operations in outer_loops)


def repeats_loader(source: SourceFile, call: Op, other: Op, run: Sequence[Op]) -> bool:
    """Return True if two calls of a model are on one loader, in one outer iteration, without training in between."""
    first, last = sorted((call.index, other.index))
    loader, other_loader = (find_loader(each.loops[-1]) if each.loops else None for each in (call, other))
    if first == last or loader is None or other_loader is None or not loader.may_alias(other_loader):
        return False
    if [id(loop) for loop in call.loops[:-1]] != [id(loop) for loop in other.loops[:-1]]:
        return False
    return not any(is_training_step(source, each, call.subject, run) for each in run if first < each.index < last)


def _discards_output(call: Op) -> bool:
    """Return True if the output is discarded, so that the call only updates BatchNorm statistics."""
    return isinstance(call.statement, ast.Expr) and call.statement.value is call.node


def find_training_step(source: SourceFile, call: Op) -> Op | None:
    """Return an earlier step that trains the called model on another loader; None if that is not certain."""
    loader = find_loader(call.loops[-1])
    run = [each for each in source.operations if each.entry_point == call.entry_point]
    steps = [each for each in run if is_training_step(source, each, call.subject, run)]
    before = [each for each in steps if each.index < call.index]
    if loader is None or not before:
        return None
    for loaders in (list(_enclosing_loaders(each)) for each in steps):
        if not loaders or any(each is None or each.may_alias(loader) for each in loaders):
            return None
    return before[0]


def _enclosing_loaders(step: Op) -> Iterator[AbstractValue | None]:
    """Yield the loaders of the loops around a step."""
    for loop in step.loops:
        loader = find_loader(loop)
        if loader is not None:
            yield loader


def unused_graphs(source: SourceFile) -> Iterator[Op]:
    """Yield the evaluation calls in eval mode that build graphs for which no backward pass exists."""
    for call in evaluation_calls(source, grad=True):
        if is_in_eval_mode(source, call) and has_unused_graph(source, call):
            yield call


def has_unused_graph(source: SourceFile, call: Op) -> bool:
    """Return True if an evaluation call builds a graph for which certainly no backward pass exists."""
    inside = [each for each in source.ops_of_run(call) if any(loop is call.loops[-1] for loop in each.loops)]
    uses_graphs = any(
        each.kind in (OpKind.ESCAPE, OpKind.SET_REQUIRES_GRAD)
        or (each.kind is OpKind.TORCH_CALL and each.name.startswith("torch.autograd"))
        for each in inside
    )
    if uses_graphs or is_partly_frozen(source, call.subject):
        return False
    results = {id(each.result) for each in inside if each.result is not None}
    backwards = [each for each in source.ops(OpKind.BACKWARD) if each.entry_point == call.entry_point]
    return not any(results & {id(value) for value in each.subject.ancestors()} for each in backwards)


def no_grad_fix(source: SourceFile, call: Op) -> Fix | None:
    """Return the fix that puts ``with torch.no_grad():`` around the loop or statement of a call; None if impossible."""
    names = [
        alias.asname or alias.name
        for each in source.tree.body
        if isinstance(each, ast.Import)
        for alias in each.names
        if alias.name == "torch"
    ]
    loop = call.loops[-1].node
    plain = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return
    statement = loop if is_statement(loop) else call.statement if isinstance(call.statement, plain) else None
    if not names or statement is None or not is_inside(call.node, statement):
        return None
    edits = source.text.indent_under(statement, f"with {names[0]}.no_grad():")
    return Fix(edits, safe=False, description="Disable gradients") if edits else None
