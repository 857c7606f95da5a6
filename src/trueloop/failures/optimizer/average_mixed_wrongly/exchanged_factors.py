"""Finds weighted sums of two networks whose factors are exchanged, in the source."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.weight_averages import WeightedSum, sums_into, weight_value, weighted_sums
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Rule
from trueloop.failures.optimizer.average_mixed_wrongly.copied_anew import find_copied_anew
from trueloop.failures.optimizer.average_mixed_wrongly.share_only_added import shares_only_added

MAX_OWN: Final = 0.1  # an average that keeps less of itself in each update is a copy
_STATES: Final = frozenset(("parameters", "named_parameters", "state_dict", "buffers"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each update of an average that gives it almost no weight, or that begins with a new copy."""
    yield from find_copied_anew(source)
    yield from shares_only_added(source)
    yield from _of_averaging_functions(source)
    loops = list(source.nodes_of(ast.For, ast.DictComp))
    for loop in loops:
        iterables = [loop.iter] if isinstance(loop, ast.For) else [each.iter for each in loop.generators]
        calls = [each for of in iterables for each in nodes_in(of, ast.Call)]
        if not any(last_name(each.func) in _STATES for each in calls) and "state" not in ast.unparse(iterables[0]):
            continue
        for update in weighted_sums(loop):
            weight = weight_value(source, update.own)
            own = None if weight is None else 1 - weight if update.complement else weight
            if own is not None and 0 < own <= MAX_OWN:
                yield _hit(source, update, own)


def _hit(source: SourceFile, update: WeightedSum, own: float) -> Hit:
    return Hit(
        message=f"`{ast.unparse(update.node)}` keeps only {own:.3g} of the average in each update: the two "
        "weights are exchanged, so it is a copy of the other network.",
        node=update.node,
        fix=_exchanged(source, *update.parts) if update.parts else None,
    )


def _of_averaging_functions(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``avg_fn`` that keeps less than a tenth of the average; PyTorch's documentation shows a tenth."""
    for call in definitions(source).calls.get("AveragedModel", []):
        given = argument_node(call, "avg_fn", 2)
        for value in origins(source, given, 2) if given is not None else ():
            function: Any = definitions(source).functions.get(last_name(value), value)
            if isinstance(function, ast.Lambda | ast.FunctionDef) and function.args.args:
                average = ast.Name(function.args.args[0].arg)
                updates = [each for node in nodes_in(function, ast.BinOp) for each in sums_into(node, average, node)]
                owns = [weight_value(source, each.own) or 0 for each in updates]
                yield from (_hit(source, e, own) for e, own in zip(updates, owns, strict=True) if 0 < own < MAX_OWN)


def _exchanged(source: SourceFile, one: ast.expr, other: ast.expr) -> Fix:
    """Return the fix that exchanges the two parts of a sum."""
    edits = (source.text.replace(one, source.text.segment(other)), source.text.replace(other, source.text.segment(one)))
    return Fix(edits, safe=False, description="Exchange the two parts")


RULE = Rule(
    required_words=(
        "for |AveragedModel(",
        "parameters()|state_dict|state|AveragedModel(",
        "1 -|1-|1.0 -|1.0-|1. -|lerp_|mul_(|+=&arget|add_(|arget&+ |+=&ema|+=&eacher|AveragedModel(",
        "ema|EMA|ecay|alpha|tau|oment|avg|verage|olyak|shadow|arget|eacher|beta|slow",
    ),
    find=find,
)
