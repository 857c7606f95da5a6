"""Finds functional dropout without ``training`` in the text of a program, and the evaluations that run it."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.evaluation_loops import evaluation_calls, find_training_step
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.queries.modes import is_in_eval_mode
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Edit, Fix

FUNCTIONS: Final = frozenset(f"torch.nn.functional.dropout{kind}" for kind in ("", "1d", "2d", "3d"))


def unflagged_dropouts(source: SourceFile) -> Iterator[tuple[Op, Any]]:
    """Yield the unconditional functional dropouts without ``training`` in methods, with the method."""
    for each in source.ops(OpKind.TORCH_CALL):
        if each.name not in FUNCTIONS or not isinstance(each.node, ast.Call):
            continue
        rate = each.options.get("p") or each.options.get("1")
        has_flag = {"training", "2", "**"} & each.options.keys() or any(
            isinstance(a, ast.Starred) for a in each.node.args
        )
        method = each.function
        if has_flag or (rate is not None and rate.constant() == 0) or not isinstance(method, ast.FunctionDef):
            continue
        plain = method.args.args and not method.decorator_list and _is_method(source, method)
        if plain and not _is_conditional(method, each.node):
            yield each, method


def _is_method(source: SourceFile, method: ast.FunctionDef) -> bool:
    return any(
        isinstance(each, ast.ClassDef) and each.bases and any(method is one for one in each.body)
        for each in source.nodes
    )


def _is_conditional(method: ast.FunctionDef, node: ast.Call) -> bool:
    """Return True if a call in a method may be skipped or repeated."""
    tests = ast.If | ast.IfExp | ast.While | ast.BoolOp | ast.comprehension | ast.Lambda
    around = [each for each in ast.walk(method) if isinstance(each, tests | ast.ListComp | ast.GeneratorExp)]
    early = any(isinstance(each, ast.Return) and each.lineno < node.lineno for each in ast.walk(method))
    return early or any(is_inside(node, each) for each in around)


def find_evaluation(source: SourceFile, dropout: Op) -> Op | None:
    """Return the call that evaluates a trained model with this dropout in eval mode on a loader."""
    if _reads_training_flag(source):
        return None
    for call in evaluation_calls(source, grad=None):
        path = (*call.calls, call.node)
        if (
            dropout.entry_point != call.entry_point
            or dropout.calls[: len(path)] != path
            or dropout.branches != call.branches
        ):
            continue
        layers = all(
            each.iterable is not None and each.iterable.kind is ValueKind.MODEL
            for each in dropout.loops[len(call.loops) :]
        )
        straight = bool(call.inputs) and call.inputs[0].name == "batch"
        if layers and straight and is_in_eval_mode(source, call) and find_training_step(source, call) is not None:
            return call
    return None


def _reads_training_flag(source: SourceFile) -> bool:
    """Return True if anything but an argument of dropout reads ``training``: it may turn the dropout off."""
    arguments = {id(inner) for call in source.calls_of(*FUNCTIONS) for inner in ast.walk(call)}
    return any(
        isinstance(each, ast.Attribute) and each.attr == "training" and id(each) not in arguments
        for each in source.nodes
    )


def pass_training_flag(source: SourceFile, node: ast.Call, method: ast.FunctionDef, *, safe: bool) -> Fix | None:
    """Return the fix: ``training=self.training`` as the last argument."""
    last = max([*node.args, *(each.value for each in node.keywords)], key=lambda each: (each.lineno, each.col_offset))
    end, close = source.text.span(last)[1], source.text.span(node)[1]
    if not re.fullmatch(rb"\s*,?\s*(#[^\n]*\s*)*\)", source.text.content[end:close]):
        return None
    edit = Edit(end, end, f", training={method.args.args[0].arg}.training")
    return Fix((edit,), safe=safe, description="Pass training=self.training")
