"""Finds derivatives in a loss that `torch.autograd.grad` computes without a graph."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import FORWARD_RESULT, NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix

_NONLINEAR: Final = re.compile(r"(^|\.|_)(norm|vector_norm|pow|square|abs|sqrt|\w*loss)_?$")
_OPERATION: Final = re.compile(r"(^binary |\.)(Mult|Div|mul|multiply|div|divide|true_divide)$")
_LOSS_NAME: Final = re.compile(r"loss|entropy|objective", re.IGNORECASE)
_PARAMETERS: Final = re.compile(r"param|weight|last_layer|theta|fast", re.IGNORECASE)
MAX_VALUES: Final = 4000


def derivatives_without_graph(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls of ``torch.autograd.grad`` without ``create_graph`` whose result is a part of a loss."""
    backwards = source.ops(OpKind.BACKWARD)
    models = {id(each.result): each for each in source.ops(OpKind.MODEL_CALL) if each.result is not None}
    reported = set[int]()
    for call in source.ops(OpKind.TORCH_CALL):
        if (
            call.name != "torch.autograd.grad"
            or id(call.node) in reported
            or not _is_derivative_of_output(call, models)
        ):
            continue
        later = [each for each in backwards if each.entry_point == call.entry_point and each.index > call.index]
        backward = next((each for each in later if _contains(each.subject, call, models)), None)
        if backward is not None:
            reported.add(id(call.node))
            yield Hit(
                message=f"`{ast.unparse(call.node)}` has no create_graph=True: its result is a constant in the loss, "
                "so this part of the loss trains nothing.",
                node=call.node,
                related=((backward.node, "the backward pass starts here"),),
                fix=with_graph(source, call.node),
            )


def _is_derivative_of_output(call: Op, models: dict[int, Op]) -> bool:
    """Return True if a model's output, not a loss, is differentiated by an input, and no graph is created."""
    create_graph = call.arguments.get("create_graph", call.arguments.get("4"))
    outputs = call.arguments.get("outputs", call.arguments.get("0"))
    inputs = call.arguments.get("inputs", call.arguments.get("1"))
    may_create_graph = (
        any(each.arg is None for each in call.node.keywords)
        if create_graph is None
        else create_graph.constant() is not False
    )
    if may_create_graph or outputs is None or inputs is None:
        return False
    texts = [ast.unparse(each.node) if isinstance(each.node, ast.AST) else "" for each in (outputs, inputs)]
    if _LOSS_NAME.search(texts[0]) or _PARAMETERS.search(texts[1]) or inputs.kind is ValueKind.PARAMETERS:
        return False
    above = list(outputs.ancestors(MAX_VALUES))
    return any(id(each) in models for each in above) and not any(_LOSS_NAME.search(each.name) for each in above)


def _contains(root: AbstractValue, call: Op, models: dict[int, Op]) -> bool:
    """Return True if a loss contains a norm, power or distance of a derivative that is no input of a model.

    The denominator of a quotient, and a norm as a factor, count as constants if the rest has a graph.
    """
    queue, seen = [(root, False, False)], set[tuple[int, bool, bool]]()
    while queue and len(seen) < MAX_VALUES:
        value, is_nonlinear, is_factor = queue.pop()
        if value is call.result:
            if is_nonlinear:
                return True
            continue
        if is_factor and _is_nonlinear(value):
            continue
        is_nonlinear = is_nonlinear or _is_nonlinear(value)
        if (id(value), is_nonlinear, is_factor) in seen or NO_GRAPH in value.facts:
            continue
        seen.add((id(value), is_nonlinear, is_factor))
        parts = [(each, is_factor) for each in value.union or value.sources]
        model = models.get(id(value))
        if model is not None:
            computed = value.attributes.get(FORWARD_RESULT)
            is_inside = computed is not None and any(each is model.node for each in call.calls)
            parts = [(computed, is_factor)] if computed is not None and is_inside else []
        elif _OPERATION.search(value.name) and len(value.sources) > 1 and not _is_nonlinear(value):
            parts = list(_operands(value, call, models, is_factor=is_factor))
        queue += [(each, is_nonlinear, factor) for each, factor in parts]
    return False


def _operands(
    value: AbstractValue, call: Op, models: dict[int, Op], *, is_factor: bool
) -> Iterator[tuple[AbstractValue, bool]]:
    """Yield the operands of a product or quotient through which a derivative may be a term, and if as a factor."""
    left, right = value.sources[:2]
    is_quotient = "div" in value.name.lower()
    yield left, is_factor or (not is_quotient and _has_own_graph(right, call, models))
    if not (is_quotient and _has_own_graph(left, call, models)):
        yield right, is_factor or _has_own_graph(left, call, models)


def _has_own_graph(value: AbstractValue, call: Op, models: dict[int, Op]) -> bool:
    """Return True for a value that has the graph of a model's output otherwise than through a derivative."""
    queue, seen = [value], set[int]()
    while queue and len(seen) < MAX_VALUES:
        each = queue.pop()
        if each is call.result or id(each) in seen or NO_GRAPH in each.facts:
            continue
        if id(each) in models:
            return True
        seen.add(id(each))
        queue += [*each.sources, *each.union]
    return False


def _is_nonlinear(value: AbstractValue) -> bool:
    node = value.node
    if isinstance(node, ast.BinOp):
        is_square = isinstance(node.op, ast.Mult) and ast.dump(node.left) == ast.dump(node.right)
        return isinstance(node.op, ast.Pow) or is_square
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return bool(_NONLINEAR.search(value.name) or _NONLINEAR.search(called))


def with_graph(source: SourceFile, call: ast.Call) -> Fix | None:
    """Return the fix that passes ``create_graph=True``; None if the end of the arguments is unclear."""
    description = "Pass create_graph=True"
    given = next((each.value for each in call.keywords if each.arg == "create_graph"), None)
    if given is not None:
        return Fix((source.text.replace(given, "True"),), safe=False, description=description)
    ends = [source.text.span(each)[1] for each in (*call.args, *(each.value for each in call.keywords))]
    last, end = max(ends), source.text.span(call)[1]
    if len(call.args) > 4 or source.text.content[last:end].decode().strip() not in (")", ",)"):
        return None
    return Fix((Edit(last, last, ", create_graph=True"),), safe=False, description=description)
