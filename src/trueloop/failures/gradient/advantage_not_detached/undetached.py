"""Finds products of a log-probability and an advantage that still has the graph of the critic, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

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
_CUTS: Final = frozenset(("detach", "item", "tolist", "numpy", "detach_", "tensor", "as_tensor", "from_numpy", "float"))
_ERRORS: Final = re.compile(r"mse|smooth_?l1|huber|l1_loss", re.IGNORECASE)
_MAX_DEPTH: Final = 8


def find_undetached(source: SourceFile) -> Iterator[Hit]:
    """Yield each advantage in a policy loss that is computed from the values that the same loss trains."""
    reported: set[int] = set()
    for terms in minimised_terms(source):
        trained: set[Any] | None = None
        for term in terms:
            factor = _advantage(source, term)
            if factor is None or id(factor) in reported:
                continue
            if trained is None:
                trained = {key for each in terms for error in _error(source, each) for key in _values(source, error)}
            if not trained & set(_values(source, factor)):
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
    return any(isinstance(part.op, ast.Sub) for each in origins(source, node, 3) for part in nodes_in(each, ast.BinOp))


def _error(source: SourceFile, term: Term) -> Iterator[ast.expr]:
    """Yield what the value loss is computed from, if a term is one: ``mse_loss(values, returns)``, ``delta ** 2``."""
    match term.node:
        case ast.Call(func=ast.Attribute(attr="pow" | "square", value=inner)):
            yield inner
        case ast.BinOp(op=ast.Pow(), left=inner):
            yield inner
        case ast.Call(func=func, args=args):
            made = [func, *possible_values(source, func)]
            if args and any(_ERRORS.search(ast.unparse(each)) for each in made):
                yield from args
        case _:
            pass


def _values(source: SourceFile, node: ast.AST, depth: int = _MAX_DEPTH) -> Iterator[Any]:
    """Yield a key for each variable of critic's values, and each call of a critic, that a node has the graph of."""
    match node:
        case ast.Call(func=func) if last_name(func) in _CUTS or isinstance(func, ast.Lambda):
            return
        case ast.Attribute(attr="data" | "shape"):
            return
        case ast.Name() | ast.Attribute():
            found = possible_values(source, node) if depth else []
            if _VALUE.search(last_name(node)):
                yield from map(id, found)
                yield (id(function_of(source, node)), dotted_name(node))
            for each in found:
                if not is_without_gradients(source, each):
                    yield from _values(source, each, depth - 1)
            return
        case ast.Call(func=func) if _VALUE.search(last_name(func)) and not isinstance(func, ast.Subscript):
            yield id(node)
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from _values(source, child, depth)
