"""Finds the model calls whose outputs are judged, as in a validation, whatever they iterate over."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import nodes_in

JUDGING: Final = re.compile(
    r"argmax|\bmax\(|topk|correct|accura|loss|criterion|metric|score|\.eq\(|==|round\(|mse|error|\bpred|prob|auc|dice|"
    r"\biou|psnr|entropy|nll|softmax|sigmoid",
    re.IGNORECASE,
)
"""Words of code that compares outputs with targets, or ranks classes."""
_TRAINING: Final = (OpKind.BACKWARD, OpKind.STEP)


def judged_calls(source: SourceFile) -> Iterator[Op]:
    """Yield the calls of models without gradients whose outputs are judged and not used for training."""
    calls = [each for each in source.ops(OpKind.MODEL_CALL) if each.grad is False or _is_detached(source, each)]
    call_nodes = {id(each.node) for each in source.ops(OpKind.MODEL_CALL)}
    used = {id(v) for each in source.ops(OpKind.BACKWARD) for v in each.subject.ancestors(2000)} if calls else set()
    for call in calls:
        is_layer = any(id(each) in call_nodes for each in call.calls)  # within the forward of a model
        is_plain = call.subject.kind is ValueKind.MODEL and not is_layer and not _may_switch_mode(call)
        statement = call.statement
        is_discarded = isinstance(statement, ast.Expr) and statement.value is call.node
        if is_plain and not is_discarded and id(call.result) not in used and _is_judged(source, call):
            yield call


def _is_detached(source: SourceFile, call: Op) -> bool:
    """Return True for ``model(x).detach()``, ``model(x).data`` and ``model(x).argmax(1)``."""
    return getattr(source.parents.get(id(call.node)), "attr", "") in ("detach", "data", "argmax")


def _may_switch_mode(call: Op) -> bool:
    """Return True within a context manager that is not PyTorch's: it may set eval mode."""
    return any(not each or "eval" in each or "mode" in each for each in call.contexts)


def _is_judged(source: SourceFile, call: Op) -> bool:
    """Return True if the loop or function around a call judges outputs, and does not train."""
    run = source.ops_of_run(call)
    inside: list[Op] = []
    scope: Any = None
    if call.loops:
        scope = call.loops[-1].node
        inside = [each for each in run if any(loop is call.loops[-1] for loop in each.loops)]
    if scope is None or any(each.kind in _TRAINING for each in inside):
        if call.function is None or isinstance(call.function, ast.Lambda):
            return _reaches_loss(source, call, inside) if scope is not None else _is_judged_later(source, call)
        scope, depth = call.function, len(call.calls)
        inside = [each for each in run if each.calls[:depth] == call.calls]
        if any(each.kind in _TRAINING for each in inside):
            return _reaches_loss(source, call, inside)
    if isinstance(scope, ast.comprehension):
        scope = call.function or call.statement
    return scope is not None and JUDGING.search(ast.unparse(scope)) is not None


def _is_judged_later(source: SourceFile, call: Op) -> bool:
    """Return True if a module judges an output in the statement of a call, or in one that reads its variables."""
    statement: Any = call.statement
    names = assigned_names(statement)
    readers = [e for e in source.tree.body if e.lineno > statement.lineno and names & {
        name.id for name in nodes_in(e, ast.Name)}]  # fmt: skip
    return any(JUDGING.search(ast.unparse(each)) for each in (statement, *readers))


def _reaches_loss(source: SourceFile, call: Op, inside: list[Op]) -> bool:
    """Return True if a loss is computed from an output within a loop that also trains."""
    return any(
        each.kind is OpKind.LOSS and each.inputs and any(v is call.result for v in each.inputs[0].ancestors())
        for each in inside
    )
