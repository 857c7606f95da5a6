"""Finds products of a log-probability and an advantage that still has the graph of the critic, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import is_without_gradients, origins, possible_values
from trueloop.analysis.queries.signed_terms import Term, factors, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in

_LOG_PROB: Final = re.compile(
    r"log_?prob|(^|[^a-z])log_?ps?([^a-z]|$)|logpi|log_pi|ratio|log_softmax|nll|cross_entropy", re.IGNORECASE
)
_VALUE: Final = re.compile(
    r"(^|_)(values?|critics?|baselines?|vs?|v_?preds?|vals?|state_values?|v_s)(_|$|\d)", re.IGNORECASE
)
_TARGET: Final = re.compile(r"(^|_)(targets?|tgts?|refs?|old|ema)(_|$)|Target", re.IGNORECASE)
"""Names of targets, and of networks that no loss trains."""
_CUTS: Final = frozenset((
    "detach", "item", "tolist", "numpy", "detach_", "tensor", "as_tensor", "from_numpy", "float", "FloatTensor",
    "Tensor", "array", "asarray",
))  # fmt: skip
_VIEWS: Final = frozenset((
    "squeeze", "unsqueeze", "view", "reshape", "flatten", "view_as", "expand_as", "clone", "to", "mean", "sum",
    "gather",
))  # fmt: skip
_ERRORS: Final = re.compile(r"mse|smooth_?l1|huber|l1_loss", re.IGNORECASE)
_MAX_DEPTH: Final = 8
_MAX_STEPS: Final = 6  # an argument, what a function returns, and two variables


def find_undetached(source: SourceFile) -> Iterator[Hit]:
    """Yield each advantage in a policy loss that is computed from the values that the same loss trains."""
    reported: set[int] = set()
    for terms in minimised_terms(source):
        errors: list[list[set[Any]]] | None = None
        for term in terms:
            factor = _advantage(source, term)
            if factor is None or id(factor) in reported:
                continue
            if errors is None:
                errors = [sides for each in terms if (sides := _sides(source, each))]
            if not _has_trained_value(source, factor, errors):
                continue
            reported.add(id(factor))
            text = source.text.segment(factor)
            simple = isinstance(factor, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            detached = f"{text}.detach()" if simple else f"({text}).detach()"
            fix = Fix((source.text.replace(factor, detached),), safe=False, description="Detach the advantage")
            yield Hit(
                message=f"The policy loss `{ast.unparse(term.node)[:80]}` also has a gradient for the critic: "
                f"`{ast.unparse(factor)}` is computed from its values and not detached.",
                node=factor,
                fix=fix,
            )


def _advantage(source: SourceFile, term: Term) -> ast.expr | None:
    """Return the factor of a log-probability that is a difference with values of a critic; None for other terms."""
    parts = factors(term.node)[1] if isinstance(term.node, ast.BinOp | ast.Call | ast.UnaryOp) else []
    logs = [each for each in parts if _is_log_prob(source, each)]
    if len(parts) < 2 or len(logs) != 1:
        return None
    others = [each for each in parts if each is not logs[0]]
    return next((each for each in others if _has_difference(source, each)), None)


def _is_log_prob(source: SourceFile, node: ast.expr) -> bool:
    words = [ast.unparse(node), *(ast.unparse(each) for each in possible_values(source, node))]
    return any(_LOG_PROB.search(each) for each in words) and not any("adv" in each.lower() for each in words[:1])


def _has_difference(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a factor is a difference, also after it was normalised."""
    return any(
        isinstance(part.op, ast.Sub) for each in origins(source, node, _MAX_STEPS) for part in nodes_in(each, ast.BinOp)
    )


def _has_trained_value(source: SourceFile, factor: ast.expr, errors: list[list[set[Any]]]) -> bool:
    """Return True if a factor has the graph of values that an error trains.

    Of a factor ``target - values.detach()`` and an error of the same two, only the detached ones are trained.
    """
    used, named = set(_values(source, factor)), set(_values(source, factor, cuts=frozenset()))
    for sides in errors:
        detached = [each for each in sides if each & (named - used)]
        if any(each & used for each in detached or sides):
            return True
    return False


def _sides(source: SourceFile, term: Term) -> list[set[Any]]:
    """Return the keys of the critic's values in the two operands of a value loss, without those of a known target."""
    node, operands = _error(source, term)
    keys = [set(_values(source, each)) for each in operands]
    if len(operands) == 2 and all(keys):
        known = _are_outputs(source, node)
        keys = [each for each, is_output in zip(keys, known, strict=True) if is_output or not any(known)]
    return [each for each in keys if each]


def _are_outputs(source: SourceFile, error: ast.expr) -> list[bool]:
    """Return for each of the two operands of an error whether it is certainly computed from the output of a model."""
    losses = [each.result for each in source.ops(OpKind.LOSS) if each.node is error and each.result is not None]
    roots = [each.subject for each in source.ops(OpKind.BACKWARD)] if not losses else []
    losses += [value for each in roots for value in each.ancestors(2000) if value.node is error]
    outputs = {id(each.result) for each in source.ops(OpKind.MODEL_CALL)}
    pairs = [each.sources[:2] for each in losses if len(each.sources) > 1]
    return [
        bool(pairs) and all(any(id(value) in outputs for value in pair[number].autograd_graph()) for pair in pairs)
        for number in range(2)
    ]


def _error(source: SourceFile, term: Term) -> tuple[ast.expr, list[ast.expr]]:
    """Return the node and the operands of a value loss: ``mse_loss(values, returns)``, ``delta ** 2``."""
    match term.node:
        case ast.Call(func=ast.Attribute(attr="pow" | "square", value=inner)) | ast.BinOp(op=ast.Pow(), left=inner):
            for each in origins(source, inner, 3):
                if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub):
                    return each, [each.left, each.right]
            return inner, [inner]
        case ast.Call(func=func, args=args):
            made = [func, *possible_values(source, func)]
            is_error = any(_ERRORS.search(ast.unparse(each)) for each in made)
            return term.node, args[:2] if is_error else []
        case _:
            return term.node, []


def _values(source: SourceFile, node: ast.AST, depth: int = _MAX_DEPTH, cuts: frozenset[str] = _CUTS) -> Iterator[Any]:
    """Yield a key for each variable of critic's values, and each call of a critic, that a node has the graph of.

    With ``cuts=frozenset()`` also those whose graph the program cuts off.
    """
    match node:
        case ast.Call(func=func) if last_name(func) in cuts or isinstance(func, ast.Lambda):
            return
        case ast.Attribute(attr="data") if cuts:
            return
        case ast.Attribute(attr="shape"):
            return
        case ast.Attribute(value=inner, attr=name) if name in _VIEWS:
            yield from _values(source, inner, depth, cuts)
            return
        case ast.Name() | ast.Attribute():
            yield from _values_of_name(source, node, depth, cuts)
            return
        case ast.Call(func=func) if _is_critic(func):
            yield id(node)
        case _:
            pass
    items = _items(source, node) if depth else []
    for child in ast.iter_child_nodes(node) if items is None else items:
        yield from _values(source, child, depth if items is None else depth - 1, cuts)


def _items(source: SourceFile, node: ast.AST) -> list[ast.expr] | None:
    """Return what the known dictionaries of ``batch["values"]`` have under this key; None for other expressions."""
    match node:
        case ast.Subscript(value=ast.Name() | ast.Attribute() as owner, slice=ast.Constant(value=str(name))):
            tables = [each for each in origins(source, owner, 3) if isinstance(each, ast.Dict)]
            pairs = [pair for each in tables for pair in zip(each.keys, each.values, strict=True)]
            return [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name]
        case _:
            return None


def _values_of_name(
    source: SourceFile, node: ast.Name | ast.Attribute, depth: int, cuts: frozenset[str]
) -> Iterator[Any]:
    found = possible_values(source, node) if depth else []
    is_cut = bool(found and cuts) and all(_is_cut(source, each) for each in found)
    if _VALUE.search(last_name(node)) and not _TARGET.search(last_name(node)) and not is_cut:
        yield from map(id, found)
        yield (id(function_of(source, node)), dotted_name(node))
    for each in found:
        if not is_without_gradients(source, each):
            yield from _values(source, each, depth - 1, cuts)


def _is_critic(function: ast.expr) -> bool:
    name = last_name(function)
    return bool(_VALUE.search(name)) and not _TARGET.search(name) and not isinstance(function, ast.Subscript)


def _is_cut(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a value without a graph: ``torch.FloatTensor(returns).to(device)``."""
    while True:
        match node:
            case ast.Call(func=func) if last_name(func) in _CUTS:
                return True
            case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
                node = inner
            case ast.Attribute(value=inner, attr=name):
                if name == "data":
                    return True
                node = inner
            case _:
                return is_without_gradients(source, node)
