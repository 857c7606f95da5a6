"""Finds weights that are clipped to a small range after the step of another model, as of the generator in a WGAN."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_CLAMPS: Final = frozenset(("clamp_", "clamp", "clip_", "clip"))
_LIMIT: Final = 1.0  # from which weights are clipped for other reasons, as those of binary networks
_SMALL_LIMIT: Final = 0.1  # of a Wasserstein critic
_CALL_NAME: Final = re.compile(r"clip|clamp", re.IGNORECASE)


class _Clipping(NamedTuple):
    """A loop that clips the weights of a model."""

    loop: Op
    call: ast.Call
    limit: float | None
    """None = unknown."""


def find_clipped_weights(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping of the weights of a model whose outputs the clipped model should have scored."""
    loops = source.ops(OpKind.ITERATE)
    clippings = [found for each in loops if (found := _clipping(source, each)) is not None]
    reported: set[int] = set()
    for each in clippings:
        if id(each.call) in reported or each.limit is None or not 0 < each.limit < _LIMIT:
            continue
        step = _step_before(source, each)
        if step is not None and not _is_clipped(source, step, clippings):
            reported.add(id(each.call))
            yield Hit(
                message=f"`{ast.unparse(each.call)}` clips weights of a model whose samples another one scores. The "
                f"weights that `{ast.unparse(step.node)}` updates are never clipped.",
                node=each.call,
                related=((step.node, "this step updates the model that scores"),),
            )


def _clipping(source: SourceFile, loop: Op) -> _Clipping | None:
    """Return what is known of a loop over parameters that clips them on both sides; None for other loops."""
    node = loop.node
    if isinstance(node, ast.comprehension):
        node = source.parents.get(id(node), node)
    if not loop.subject.models() or not isinstance(node, ast.For | ast.ListComp | ast.GeneratorExp):
        return None
    for call in nodes_in(node, ast.Call):
        limits = [*call.args, *(each.value for each in call.keywords)]
        if last_name(call.func) in _CLAMPS and ".grad" not in ast.unparse(call):
            lower = next((each for each in limits if _is_negative(source, each)), None)
            known = None if lower is None else _number(source, lower)
            limit = 0.0 if lower is None else _SMALL_LIMIT if known is None else -known
            return _Clipping(loop, call, limit)
    return None


def _is_negative(source: SourceFile, node: ast.expr) -> bool:
    number = _number(source, node)
    return number < 0 if number is not None else isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _number(source: SourceFile, node: ast.expr) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            number = _number(source, inner)
            return None if number is None else -number
        case ast.Name():
            values = possible_values(source, node)
            return _number(source, values[0]) if len(values) == 1 and not isinstance(values[0], ast.Name) else None
        case _:
            return None


def _step_before(source: SourceFile, clipping: _Clipping) -> Op | None:
    """Return a step of the model that scores the samples of the clipped one, after which the clipping runs.

    With a small limit, the step before may also be that of the clipped model itself.
    """
    loop, small = clipping.loop, clipping.limit is not None and clipping.limit <= _SMALL_LIMIT
    before = _latest_steps(source, loop)
    if not before or (any(shares(each, loop) for each in before) and not small):
        return None
    steps = [each for each in source.ops(OpKind.STEP) if each.subject.models() and not shares(each, loop)]
    first = [each for each in before if not shares(each, loop)]
    for step in first or steps:
        if _scores(source, step, loop) and not _scores(source, loop, step):
            return step
    return None


def _latest_steps(source: SourceFile, loop: Op) -> list[Op]:
    """Return the steps between a loop over parameters and the backward pass before it."""
    found: list[Op] = []
    if not loop.loops:
        return found
    inside = source.ops_in_loop(loop.loops[-1], OpKind.STEP, OpKind.BACKWARD, root=loop.entry_point)
    for each in reversed([each for each in inside if each.index < loop.index]):
        if each.kind is OpKind.BACKWARD:
            break
        found.append(each)
    return found


def _scores(source: SourceFile, scoring: Op, scored: Op) -> bool:
    """Return True if a call of the model of one operation gets what the model of the other operation has made."""
    calls = source.ops(OpKind.MODEL_CALL)
    made = {id(each.result) for each in calls if each.result is not None and shares(each, scored)}
    return any(
        id(value) in made
        for call in calls
        if shares(call, scoring) and not shares(call, scored)
        for given in call.inputs
        for value in given.ancestors()
    )


def _is_clipped(source: SourceFile, step: Op, clippings: Sequence[_Clipping]) -> bool:
    """Return True if the program also clips the weights that a step updates, perhaps in a function of another file."""
    passed = [each for each in source.ops(OpKind.ESCAPE) if _CALL_NAME.search(ast.unparse(each.node))]
    return any(shares(each.loop, step) for each in clippings) or any(
        step.subject.covers(value) for each in passed for value in each.inputs
    )


def shares(one: Op, other: Op) -> bool:
    """Return True if one of two operations concerns parameters of the other."""
    return one.subject.covers(other.subject) or other.subject.covers(one.subject)
