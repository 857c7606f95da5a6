"""Finds decoders that get the token that they shall predict, at each step of a loop or for all steps at once."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, is_label, is_loss_call
from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import dotted_name, encloses, integer, nodes_in

_STEP: Final = re.compile(r"^self\.|decod|embed|cell|rnn|gru|lstm|model", re.IGNORECASE)
"""Names of what a decoder calls for one step."""
_SHAPED: Final = frozenset(("reshape", "view", "flatten", "contiguous", "transpose", "permute", "float", "long", "to"))


def find_fed_targets(source: SourceFile) -> Iterator[Hit]:
    """Yield each target that a decoder gets at the step of a loop that predicts it, as ``decoder(targets[:, t])``."""
    for loop in source.nodes_of(ast.For):
        limits = loop.iter.args if isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "range" else []
        if not limits or not isinstance(loop.target, ast.Name):
            continue
        for call in nodes_in(loop, ast.Call):
            is_step = bool(_STEP.search(dotted_name(call.func))) and not is_loss_call(source, call)
            given = [value for each in call.args if is_step for value in origins(source, each, 2)]
            # What the loop assigns after the call is for the next step.
            before = [each for each in given if encloses(loop, each) and each.lineno <= call.lineno]
            fed = next((each for each in before if _is_at(each, loop.target.id)), None)
            if fed is None or not (
                _is_in_loss(source, loop, fed) or _is_first_token_left_out(source, loop, limits, call)
            ):
                continue
            yield Hit(
                message=f"`{ast.unparse(call)[:80]}` gets `{ast.unparse(fed)}`, the token that this step predicts. "
                f"Pass the one before it, at `{loop.target.id} - 1`.",
                node=fed,
                severity=Severity.WARNING,
                related=((call, "passed here"),) if call.lineno != fed.lineno else (),
            )
            break


def find_unshifted_inputs(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``model(source, targets[:, 1:])`` whose output a loss compares with ``targets[:, 1:]``."""
    for loss in source.all_calls:
        if len(loss.args) < 2 or not is_loss_call(source, loss):
            continue
        outputs, targets = ([*origins(source, without_methods(each, _SHAPED), 2)] for each in loss.args[:2])
        predicted = {ast.unparse(each) for each in targets if isinstance(each, ast.Subscript) and _drops_first(each)}
        calls = [each for each in outputs if isinstance(each, ast.Call) and len(each.args) > 1] if predicted else []
        for call in calls:
            given = [value for each in call.args for value in origins(source, each, 2)]
            fed = next((each for each in given if ast.unparse(each) in predicted), None)
            if fed is not None and function_of(source, call) is function_of(source, loss):
                yield Hit(
                    message=f"`{ast.unparse(call)[:80]}` gets `{ast.unparse(fed)}`, the tokens that it is trained to "
                    "predict. Pass the ones before them, without the last one: `[:, :-1]`.",
                    node=call,
                    severity=Severity.WARNING,
                    related=((loss, "compared with the same tokens"),),
                )
                break


def _is_at(node: Any, step: str) -> bool:
    """Return True for ``targets[:, t]`` and ``targets[t]``, for a name of targets and a variable ``t``."""
    index = node.slice if isinstance(node, ast.Subscript) and is_label(node.value) else None
    if isinstance(index, ast.Tuple) and len(index.elts) == 2 and isinstance(index.elts[0], ast.Slice):
        index = index.elts[1]
    return isinstance(index, ast.Name) and index.id == step


def _is_in_loss(source: SourceFile, loop: ast.For, fed: ast.expr) -> bool:
    """Return True if a loss in a loop compares with what the decoder got."""
    losses = [each for each in nodes_in(loop, ast.Call) if is_loss_call(source, each)]
    return any(ast.unparse(part) == ast.unparse(fed) for each in losses for part in nodes_in(each, ast.Subscript))


def _is_first_token_left_out(source: SourceFile, loop: ast.For, limits: list[ast.expr], call: ast.Call) -> bool:
    """Return True if a loop over all steps from 1 makes the outputs for ``targets[:, 1:]``."""
    calls = [
        each
        for each in nodes_in(function_of(source, loop), ast.Call)
        if dotted_name(each.func) == dotted_name(call.func)
    ]
    is_whole = len(limits) == 2 and integer(limits[0]) == 1 and not isinstance(limits[1], ast.BinOp)
    return is_whole and len(calls) == 1 and any(map(_drops_first, source.nodes_of(ast.Subscript)))


def _drops_first(node: ast.Subscript) -> bool:
    """Return True for ``targets[:, 1:]`` and ``targets[1:]``."""
    index = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
    is_rest = (
        isinstance(index, ast.Slice) and index.lower is not None and index.upper is None and integer(index.lower) == 1
    )
    return is_rest and any(is_label(each) for each in nodes_in(node.value, ast.Name, ast.Attribute))
