"""Finds evaluations in fragments, which show neither the layers of the model nor a call of ``eval()``."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import batch_loops, is_loss_call
from trueloop.analysis.queries.loop_variables import derived_names, trains
from trueloop.analysis.queries.possible_values import is_without_gradients
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_MODE: Final = re.compile(r"eval|^train$|^training$|(?<!inference)_mode")
"""Names and attributes that may set or read the mode."""
_RANKING: Final = frozenset(("max", "argmax", "topk"))


def judged_without_mode(source: SourceFile) -> Iterator[ast.Call]:
    """Yield the calls whose outputs a loop without gradients judges, in a fragment that sets no mode anywhere.

    A file that imports PyTorch is no fragment: another file may set the mode.
    """
    if "torch" not in source.modules[0].undefined_names:
        return
    if any(_MODE.search(last_name(each)) for each in source.nodes_of(ast.Name, ast.Attribute)):
        return
    for loop in batch_loops(source):
        batch = set[str]() if trains(loop.node) else derived_names(loop)
        for statement in nodes_in(loop.node, ast.Assign) if batch else ():
            call, target = statement.value, statement.targets[0]
            if not isinstance(call, ast.Call) or not isinstance(target, ast.Name) or len(call.args) != 1:
                continue
            is_model = isinstance(call.func, ast.Name | ast.Attribute) and not source.qualified_name(call.func)
            gets_batch = isinstance(call.args[0], ast.Name) and call.args[0].id in batch
            is_judged = is_model and gets_batch and _is_judged(source, loop.node, target.id)
            if is_judged and is_without_gradients(source, call):
                yield call


def _is_judged(source: SourceFile, loop: ast.For, output: str) -> bool:
    """Return True if a loop ranks the classes of an output, or computes its loss."""
    return any(
        (last_name(each.func) in _RANKING or is_loss_call(source, each))
        and any(name.id == output for name in nodes_in(each, ast.Name))
        for each in nodes_in(loop, ast.Call)
    )
